"""How differently clients change text and image parameters, over the rounds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from .lines import over_rounds, paint_lines
from .record import RunRecord, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

TITLES = {"diversity": "drift diversity", "cosine_distance": "cosine distance"}


def table(runs: Sequence[RunRecord]) -> Table:
    """Text and image where a tuner has both; what tunes only one tower is a line, too."""
    return over_rounds(
        runs,
        {
            ("", title): {tower: ("diagnostics", "drift", tower, key) for tower in ("text", "image")}
            for key, title in TITLES.items()
        },
    )


def paint(canvas: Canvas, table: Table) -> None:
    paint_lines(canvas, table)
