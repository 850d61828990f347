"""Accuracy over the rounds, head to tail, of the server's model and of the clients'."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from .lines import over_rounds, paint_lines
from .record import METRICS, PARTS, ZERO_SHOT, RunRecord, Table, spread

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas


def table(runs: Sequence[RunRecord]) -> Table:
    cells = [(part, metric) for part in PARTS for metric in METRICS]
    found = over_rounds(runs, {cell: numbers(*cell) for cell in cells})
    return found + (zero_shot(runs, found, cells) if found else [])


def numbers(part: str, metric: str) -> dict[str, tuple[str, ...]]:
    """As tested; and as clients would stand if the closing rounds came now, where that is recorded."""
    closed = {"if closed now": ("diagnostics", "closed", metric)} if part == "personal" else {}
    return {"": (part, metric), **closed}


def zero_shot(runs: Sequence[RunRecord], found: Table, cells: Sequence[tuple[str, str]]) -> Table:
    """A level line, from the first to the last round."""
    ends = sorted({min(row["round"] for row in found), max(row["round"] for row in found)})
    levels = {(part, metric): spread(run.zero_shot(part, metric) for run in runs) for part, metric in cells}
    return [
        {"row": part, "column": metric, "line": ZERO_SHOT, "round": t, **levels[part, metric], "std": None}
        for part, metric in cells
        for t in ends
        if levels[part, metric]
    ]


def paint(canvas: Canvas, table: Table) -> None:
    paint_lines(canvas, table, y="accuracy (%)")
