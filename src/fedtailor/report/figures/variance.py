"""The gradients' variance within and between clients, and the bound on the latter, over the rounds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from .lines import over_rounds, paint_lines
from .record import RunRecord, Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

TITLES = {"sigma2": "within clients, σ²", "delta2": "between clients, δ²", "bound": "its bound, G²Δ²"}


def table(runs: Sequence[RunRecord]) -> Table:
    return over_rounds(runs, {("", title): ("diagnostics", "variance", key) for key, title in TITLES.items()})


def paint(canvas: Canvas, table: Table) -> None:
    def from_zero(axes: Axes, down: str, across: str) -> None:
        axes.set_ylim(bottom=0)

    paint_lines(canvas, table, y="squared gradient norm", each=from_zero)
