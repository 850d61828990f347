"""How many pseudo-labels are right, and how many pictures have one, head to tail, over the rounds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from .lines import over_rounds, paint_lines
from .record import METRICS, RunRecord, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas


def table(runs: Sequence[RunRecord]) -> Table:
    cells = [(kind, group) for kind in ("accuracy", "coverage") for group in METRICS]
    return over_rounds(runs, {(kind, group): ("diagnostics", "labels", group, kind) for kind, group in cells})


def paint(canvas: Canvas, table: Table) -> None:
    paint_lines(canvas, table, y="of pseudo-labels (%)")
