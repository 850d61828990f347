"""How evenly classes are known, by the server's model and by the clients', over the rounds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from .lines import over_rounds, paint_lines
from .record import PARTS, RunRecord, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

TITLES = {"balancedness": "balancedness (%)", "std": "std of class accuracies (%)"}


def table(runs: Sequence[RunRecord]) -> Table:
    cells = [(part, key) for part in PARTS for key in TITLES]
    return over_rounds(runs, {(part, TITLES[key]): ("diagnostics", "balance", part, key) for part, key in cells})


def paint(canvas: Canvas, table: Table) -> None:
    paint_lines(canvas, table)
