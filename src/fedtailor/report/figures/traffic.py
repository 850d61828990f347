"""Accuracy against all that has crossed between server and clients so far."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from statistics import fmean
from typing import TYPE_CHECKING

from .lines import paint_lines
from .record import PARTS, RunRecord, Table, series_of, spread

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

MB = 1e6
X = "sent up and down (MB)"


def table(runs: Sequence[RunRecord]) -> Table:
    """Both axes are means over seeds: other cohorts may send other amounts."""
    found: Table = []
    for one in series_of(runs):
        sent = [dict(zip([row["round"] for row in run.rounds], accumulated(run), strict=True)) for run in one.runs]
        for part in PARTS:
            for t in sorted({row["round"] for run in one.runs for row in run.tested}):
                known = spread(row[part]["overall"] for run in one.runs for row in run.tested if row["round"] == t)
                if known:
                    x = fmean(by_round[t] for by_round in sent if t in by_round)
                    found.append({"row": "", "column": part, "line": one.label, "round": t, X: x, **known})
    return found


def accumulated(run: RunRecord) -> list[float]:
    return [total / MB for total in accumulate(row["bytes_up"] + row["bytes_down"] for row in run.rounds)]


def paint(canvas: Canvas, table: Table) -> None:
    paint_lines(canvas, table, X, "overall accuracy (%)")
