"""Which branch right predictions are owed to, head to tail, in the last round that has personal parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from .record import METRICS, PARTS, RunRecord, Table, dig, series_of, spread
from .style import BARS, COLUMN, WIDTH, legend, unique

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas


def table(runs: Sequence[RunRecord]) -> Table:
    found: Table = []
    for one in series_of(runs):
        each = [
            [row["diagnostics"]["branches"] for row in run.rounds if dig(row, "diagnostics", "branches")]
            for run in one.runs
        ]
        lasts = [known[-1] for known in each if known]
        for group in METRICS:
            for part in PARTS:
                if share := spread(dig(last, group, part) for last in lasts):
                    found.append({"line": one.label, "classes": group, "branch": part, **share})
    return found


def paint(canvas: Canvas, table: Table) -> None:
    lines, places = unique(table, "line"), unique(table, "classes")
    canvas.set_size_inches(min(WIDTH, COLUMN * len(lines)), 2.4)
    panels = canvas.subplots(1, len(lines), squeeze=False, sharey=True)[0]
    for axes, line in zip(panels, lines, strict=True):
        shares = {(row["classes"], row["branch"]): row["value"] for row in table if row["line"] == line}
        here = [group for group in places if (group, PARTS[0]) in shares]
        at, floor = [places.index(group) for group in here], [0.0] * len(here)
        for part, look in zip(PARTS, BARS[1:], strict=False):
            heights = [shares[group, part] for group in here]
            axes.bar(at, heights, 0.7, floor, label=f"{part} branch", edgecolor="black", linewidth=0.5, **look)
            for x, low, height in zip(at, floor, heights, strict=True):
                if height >= 8:  # else there is no room
                    box = {"facecolor": "white", "edgecolor": "none", "pad": 1}
                    axes.text(x, low + height / 2, f"{height:.0f}", ha="center", va="center", bbox=box)
            floor = [low + height for low, height in zip(floor, heights, strict=True)]
        axes.set(title=line, ylim=(0, 100))
        axes.set_xticks(range(len(places)), places)
        axes.grid(visible=False, axis="x")
    panels[0].set_ylabel("right predictions owed to (%)")
    legend(canvas, panels[0])
