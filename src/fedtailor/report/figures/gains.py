"""What training adds to zero-shot CLIP, overall and head to tail, after the last round."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from .bars import draw_bars
from .record import METRICS, PARTS, RunRecord, Table, series_of, spread
from .style import WIDTH, legend, unique

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas


def table(runs: Sequence[RunRecord]) -> Table:
    tested = [run for run in runs if run.tested]
    found: Table = []
    for part in PARTS:
        for one in series_of(tested):
            for metric in METRICS:
                pairs = [(run.tested[-1][part][metric], run.zero_shot(part, metric)) for run in one.runs]
                if gain := spread(after - before for after, before in pairs if None not in (after, before)):
                    found.append({"part": part, "line": one.label, "classes": metric, **gain})
    return found


def paint(canvas: Canvas, table: Table) -> None:
    parts, lines, places = unique(table, "part"), unique(table, "line"), unique(table, "classes")
    canvas.set_size_inches(min(WIDTH, 0.6 + 3.2 * len(parts)), 2.4)
    panels = canvas.subplots(1, len(parts), squeeze=False, sharey=True)[0]
    for axes, part in zip(panels, parts, strict=True):
        draw_bars(axes, [row for row in table if row["part"] == part], lines, places, "classes")
        axes.axhline(0, color="black", linewidth=0.8)
        axes.set(title=part)
        axes.set_xticks(range(len(places)), places)
        axes.grid(visible=False, axis="x")
    panels[0].set_ylabel("gain over zero-shot CLIP (points)")
    legend(canvas, panels[0])
