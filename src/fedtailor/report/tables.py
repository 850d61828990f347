"""Tables for the terminal."""

from __future__ import annotations

from typing import Any

from rich.table import Table

COLUMNS = {
    "overall": "overall",
    "head": "head",
    "mid": "mid",
    "tail": "tail",
    "macro_f1": "macro-F1",
    "balancedness": "balanced",
}


def percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def gain(value: float | None, base: float | None) -> str:
    if value is None or base is None:
        return "–"
    colour = "green" if value > base else "red" if value < base else "dim"
    return f"[{colour}]{value - base:+.2f}[/]"


def result_table(summary: dict[str, Any]) -> Table:
    """Zero-shot against tuned: one model for all on the whole test set, and each client's on its own part."""
    table = Table(title=f"{summary['method']} on {summary['data']}, test accuracy in %", title_justify="left")
    table.add_column("")
    for heading in COLUMNS.values():
        table.add_column(heading, justify="right")
    trained = summary["rounds"] > 0
    for title, base, tuned in (
        ("global", summary["zero_shot"], summary["global"]),
        ("personal", summary["zero_shot_personal"], summary["personal"]),
    ):
        table.add_row(f"{title} zero-shot", *(percent(base[name]) for name in COLUMNS), end_section=not trained)
        if trained:
            table.add_row(f"{title} {summary['method']}", *(percent(tuned[name]) for name in COLUMNS), style="bold")
            table.add_row("", *(gain(tuned[name], base[name]) for name in COLUMNS), end_section=True)
    return table


def pseudo_line(labeler: str, found: dict[str, Any]) -> str:
    """How good the labels were that a labeler made, at the end."""
    right = "none" if found["accuracy"] is None else f"{found['accuracy']:.1f}%"
    return f"pseudo-labels by {labeler}: {right} right; {found['labelled']} of {found['samples']} pictures have one"


def size(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"
