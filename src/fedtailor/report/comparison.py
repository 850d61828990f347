"""A comparison as tables, for the terminal and in Markdown: the best of a column bold, the second underlined."""

import json
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from rich import box
from rich.console import Group, RenderableType
from rich.table import Column, Table
from rich.text import Text

from ..evaluation.metrics import METRICS
from ..settings.run import GIVEN
from .tables import percent, size

SECTIONS = {
    "global": "global: one model for all, on the whole test set",
    "personal": "personal: each client's model on its own part of it, mean over clients",
}
MEANING = {
    "last": "after the last round",
    "last10": "mean of the last ten tested rounds",
    "best": "in the best round of each run, which the test set chose: a record, not a result",
}
MARKS = {"best": "bold", "second": "underline", "": ""}


class Cell(NamedTuple):
    text: str
    mark: str = ""  # a key of MARKS


def comparison_table(summary: dict[str, Any]) -> RenderableType:
    """For the terminal, from what `fedtailor compare --json` prints."""
    parts: list[RenderableType] = []
    for part, heading in SECTIONS.items():
        headings = Column(overflow="fold"), *(Column(name, justify="right", no_wrap=True) for name in columns(part))
        table = Table(*headings, box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
        for row, cells in section(summary, part):
            table.add_row(Text(row["title"]), *(Text.assemble((cell.text, MARKS[cell.mark])) for cell in cells))
        parts += [Text(heading, style="italic"), table, ""]
    return Group(*parts, Text(caption(summary), style="dim"))


def markdown(summary: dict[str, Any]) -> str:
    """The same as a page, with command, versions and settings."""
    same = [f"{key}={v if isinstance(v, str) else json.dumps(v)}" for key, v in summary["same"].items()]
    lines = [
        f"# {summary['same']['data']}: {', '.join(row['title'] for row in summary['rows'])}",
        "",
        f"* {summary['date']}: `{summary['command']}`",
        "* " + ", ".join(f"{name} {version}" for name, version in summary["versions"].items()),
        f"* seeds {', '.join(map(str, summary['seeds']))}, and for every row `{' '.join(same)}`",
        "",
        f"{caption(summary)}.",
    ]
    style = {"best": "**{}**", "second": "<u>{}</u>", "": "{}"}
    for part, heading in SECTIONS.items():
        names = columns(part)
        lines += ["", f"| {heading} | {' | '.join(names)} |", "|---|" + "---:|" * len(names)]
        for row, cells in section(summary, part):
            texts = [row["title"].replace("|", r"\|"), *(style[cell.mark].format(cell.text) for cell in cells)]
            lines.append(f"| {' | '.join(texts)} |")
    return "\n".join(lines) + "\n"


def columns(part: str) -> list[str]:
    shown = [metric.heading for metric in METRICS.values() if metric.compared]
    return [*shown, "up/round", "seconds"] if part == "global" else shown  # costs need be shown only once


def section(summary: dict[str, Any], part: str) -> list[tuple[dict[str, Any], list[Cell]]]:
    """Each row with its cells: the best first by the column to sort by, if any, else in the order given."""
    rows = summary["rows"]
    lines: list[tuple[dict[str, Any], list[Cell]]] = [(row, []) for row in rows]
    for name in (name for name, metric in METRICS.items() if metric.compared):
        spreads = [row[part][name] for row in rows]
        for (_, cells), spread, mark in zip(lines, spreads, marks([s["mean"] for s in spreads]), strict=True):
            error = "" if spread["std"] is None else f"±{spread['std']:.2f}"
            cells.append(Cell(percent(spread["mean"]) + error, mark))
    if part == "global":
        for row, cells in lines:
            up = size(row["bytes_up"]["mean"] / row["rounds"]) if row["rounds"] else "–"
            cells += [Cell(up), Cell(f"{row['seconds']['mean']:.1f}")]
    if by := summary.get("sort"):
        lines = sorted(lines, key=lambda line: -math.inf if (v := line[0][part][by]["mean"]) is None else v)[::-1]
    return lines


def marks(means: Sequence[float | None]) -> list[str]:
    """Numbers that look equal, at two decimals, share a mark."""
    shown = [percent(mean) for mean in means]
    order = sorted({float(text) for text, mean in zip(shown, means, strict=True) if mean is not None}, reverse=True)
    place = {percent(value): mark for value, mark in zip(order, ("best", "second"), strict=False)}
    return [place.get(text, "") for text in shown]


def caption(summary: dict[str, Any]) -> str:
    n = len(summary["seeds"])
    over = f"mean ± sample standard deviation over n = {n} seeds" if n > 1 else f"one seed ({summary['seeds'][0]})"
    made = [f"{row['title']} ({row['labels']})" for row in summary["rows"] if row["labels"] != GIVEN]
    without = f"; trained without the data's labels: {', '.join(made)}" if made else ""
    return f"Test accuracy in %, {MEANING[summary['number']]}; {over}; best bold, second underlined{without}"
