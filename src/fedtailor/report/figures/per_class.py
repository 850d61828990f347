"""Each class's accuracy after the last round, the most frequent first, with marks where zero-shot CLIP stands."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from statistics import fmean
from typing import TYPE_CHECKING

from .bars import draw_bars
from .record import PARTS, ZERO_SHOT, Row, RunRecord, Table, classes_of, series_of, spread
from .style import WIDTH, class_ticks, legend, unique

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas


def table(runs: Sequence[RunRecord]) -> Table:
    found: Table = []
    tested = [run for run in runs if run.tested]
    if not tested:
        return found
    order, keys, names, groups, axis = classes_of(tested[0])
    for part in PARTS:
        for one in series_of(tested):
            lasts = [run.tested[-1][part]["per_class"] for run in one.runs]
            before = [run.zero_shot(part, "per_class") for run in one.runs]
            for c in order:
                place: Row = {"part": part, "axis": axis, "class": c, "name": names[c], "group": groups.get(c, "")}
                plain = spread(score.get(keys[c]) for score in before if score).get("value")
                if accuracy := spread(last.get(keys[c]) for last in lasts):
                    gain = None if plain is None else accuracy["value"] - plain
                    found.append({**place, "line": one.label, **accuracy, ZERO_SHOT: plain, "gain": gain})
    return found


def paint(canvas: Canvas, table: Table) -> None:
    parts, lines = unique(table, "part"), unique(table, "line")
    canvas.set_size_inches(WIDTH, 1.4 + 1.7 * len(parts))
    panels = canvas.subplots(len(parts), 1, squeeze=False, sharex=True)[:, 0]
    classes = {row["class"]: row for row in table}
    places = unique(table, "class")
    for axes, part in zip(panels, parts, strict=True):
        here = [row for row in table if row["part"] == part]
        draw_bars(axes, here, lines, places, "class")
        marks = zero_shot(here, places)
        if marks:
            starts, ends = [i - 0.45 for i in marks], [i + 0.45 for i in marks]
            style = {"color": "white", "linewidth": 2.4}, {"color": "#B00000", "linewidth": 1.2, "label": ZERO_SHOT}
            for how in style:  # with a white rim, to be seen on dark bars
                axes.hlines(list(marks.values()), starts, ends, **how)
        axes.set(ylabel=f"{part}\naccuracy (%)", xlim=(-0.6, len(places) - 0.4), ylim=(0, 105))
        mark_groups(axes, [classes[c]["group"] for c in places], named=axes is panels[0])
    class_ticks(panels[-1], [classes[c]["name"] for c in places], table[0]["axis"])
    legend(canvas, panels[0])


def zero_shot(table: Table, places: Sequence[int]) -> dict[int, float]:
    """Place → accuracy, the mean over lines: their seeds may not be the same."""
    known = {c: [r[ZERO_SHOT] for r in table if r["class"] == c and r[ZERO_SHOT] is not None] for c in places}
    return {i: fmean(known[c]) for i, c in enumerate(places) if known[c]}


def mark_groups(axes: Axes, groups: Sequence[str], named: bool) -> None:
    """A line between head, mid and tail, and their names above."""
    begin = 0
    for name, members in groupby(groups):
        end = begin + len(list(members))
        if end < len(groups):
            axes.axvline(end - 0.5, color="0.4", linewidth=0.7)
        if named and name:
            middle = (begin + end - 1) / 2
            axes.annotate(name, (middle, 1), xycoords=("data", "axes fraction"), ha="center", va="bottom")
        begin = end
