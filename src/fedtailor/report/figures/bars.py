"""Bars side by side, one of each line at every place, with hatches to tell them apart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from .record import Row, Table
from .style import BARS, look

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def draw_bars(axes: Axes, table: Table, lines: Sequence[str], places: Sequence[Any], place: str) -> dict[str, float]:
    """Whiskers are a standard deviation over seeds. Also: where each line's bar stands, from the place's middle."""
    width, looks = 0.8 / len(lines), look(lines, BARS)
    shifts = {line: (i - (len(lines) - 1) / 2) * width for i, line in enumerate(lines)}
    for line in lines:
        rows: dict[Any, Row] = {row[place]: row for row in table if row["line"] == line}
        known = [(i, rows[name]) for i, name in enumerate(places) if name in rows]
        at, heights = [i + shifts[line] for i, _ in known], [row["value"] for _, row in known]
        stds = [row["std"] or 0 for _, row in known]
        axes.bar(
            at, heights, width, label=line, edgecolor="black", linewidth=0.4 if len(places) < 30 else 0.25,
            yerr=stds if any(stds) else None, error_kw={"elinewidth": 0.7, "capsize": 1.5}, **looks[line],
        )  # fmt: skip
    return shifts
