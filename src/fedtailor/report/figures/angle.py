"""The angle between the gradients of the task and of the alignment to zero-shot CLIP, over the rounds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from .lines import over_rounds, paint_lines
from .record import RunRecord, Table
from .style import PLAIN

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

ANGLE, CONFLICT = "angle (degrees)", "clients in conflict (%)"


def table(runs: Sequence[RunRecord]) -> Table:
    numbers = {ANGLE: "degrees", CONFLICT: "conflict"}
    return over_rounds(runs, {("", title): ("diagnostics", "angle", key) for title, key in numbers.items()})


def paint(canvas: Canvas, table: Table) -> None:
    def right_angle(axes: Axes, down: str, across: str) -> None:
        if across == ANGLE:
            axes.axhline(90, **PLAIN)
            axes.annotate("90°", (1, 90), xycoords=("axes fraction", "data"), ha="right", va="bottom")

    paint_lines(canvas, table, each=right_angle)
