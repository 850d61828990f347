"""How far the server's model is from zero-shot CLIP, with temperatures aligned and plainly, over the rounds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from .lines import over_rounds, paint_lines
from .record import RunRecord, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

TITLES = {"tkl": "temperature-aligned, D_TKL(z ‖ f)", "kl": "plain, KL(z ‖ f)"}


def table(runs: Sequence[RunRecord]) -> Table:
    return over_rounds(runs, {("", title): ("diagnostics", "tkl", key) for key, title in TITLES.items()})


def paint(canvas: Canvas, table: Table) -> None:
    paint_lines(canvas, table, y="nats")
