"""Tables for the terminal."""

from collections.abc import Iterable, Mapping
from typing import Any

from rich.table import Column, Table
from rich.text import Text

from ..evaluation.metrics import METRICS, TAILED


def percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def shown_metrics(scores: Iterable[Mapping[str, Any]]) -> list[str]:
    """The metrics of a table. Where there is no tail, nothing is head, mid or tail, and the three are left out."""
    told = list(scores)
    tail = any(score.get(name) is not None for score in told for name in TAILED)
    return [name for name in METRICS if tail or name not in TAILED]


def gain(value: float | None, base: float | None) -> Text:
    if value is None or base is None:
        return Text("–")
    colour = "green" if value > base else "red" if value < base else "dim"
    return Text(f"{value - base:+.2f}", colour)


def result_table(summary: dict[str, Any]) -> Table:
    """Zero-shot against tuned: one model for all on the whole test set, and each client's on its own part."""
    shown = shown_metrics(summary[part] for part in ("zero_shot", "global", "zero_shot_personal", "personal"))
    headings = (Column(METRICS[name].heading, justify="right") for name in shown)
    table = Table("", *headings)
    trained = summary["rounds"] > 0
    for title, key in (("global", "zero_shot"), ("personal", "zero_shot_personal")):
        # A folder may be older than a metric.
        base, tuned = ([summary[part].get(name) for name in shown] for part in (key, title))
        table.add_row(f"{title} zero-shot", *map(percent, base), end_section=not trained)
        if trained:
            table.add_row(f"{title} {summary['method']}", *map(percent, tuned), style="bold")
            table.add_row("", *map(gain, tuned, base), end_section=True)
    return table


def heading(summary: dict[str, Any]) -> str:
    """Above it: a title of the table's own would be folded to its width."""
    return f"{summary['method']} on {summary['data']}, test accuracy in %"


def pseudo_line(labeler: str, found: dict[str, Any]) -> str:
    right = "none" if found["accuracy"] is None else f"{found['accuracy']:.1f}%"
    return f"pseudo-labels by {labeler}: {right} right; {found['labelled']} of {found['samples']} pictures have one"


def privacy_line(spent: dict[str, Any], rounds: int) -> str:
    both = {"updates": spent["epsilon"], "histograms and votes": spent["counts_epsilon"]}
    found = ", ".join(f"ε = {'∞' if e is None else f'{e:.2f}'} for {what}" for what, e in both.items() if e != 0)
    ended = f"; ended after {spent['rounds']} of {rounds} rounds, as another would exceed the budget"
    told = f"privacy of a {spent.get('unit', 'client')}: {found or 'nothing released'}, δ = {spent['delta']:g}"
    return told + (ended if spent["spent"] else "")
