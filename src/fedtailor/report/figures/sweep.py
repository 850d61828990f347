"""The last round's accuracy against a setting in which runs differ; against two, as a grid of numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ...base.errors import UserError
from .lines import paint_lines
from .record import METRICS, PARTS, ZERO_SHOT, RunRecord, Series, Table, differing, series_of, short, spread
from .style import WIDTH, unique

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas


def table(runs: Sequence[RunRecord]) -> Table:
    """A line for each method. With one setting, every metric; with two, the overall accuracy."""
    tested = [run for run in runs if run.tested]
    methods = list(dict.fromkeys(run.method for run in tested))
    varied = dict.fromkeys(key for m in methods for key in differing([run for run in tested if run.method == m]))
    keys = list(varied)
    if not 1 <= len(keys) <= 2:
        told = f"in {len(keys)}: {', '.join(map(short, keys))}" if keys else "in none but their seed"
        raise UserError(f"sweep draws runs of a method that differ in one setting or two; these differ {told}")
    for run in tested:
        if lacking := [key for key in keys if key not in run.settings]:
            raise UserError(f"sweep: {run.method} has no setting {short(lacking[0])}; leave its runs out")

    def point(one: Series) -> tuple[Any, ...]:
        return tuple(one.runs[0].settings[key] for key in keys)

    found: Table = []
    for one in sorted(series_of(tested), key=lambda one: (methods.index(one.runs[0].method), order(point(one)))):
        method = one.runs[0].method
        place = {short(key): value for key, value in zip(keys, point(one), strict=True)}
        for part in PARTS:
            for metric in METRICS if len(keys) == 1 else METRICS[:1]:
                common = {"row": part, "column": metric, **place}
                if value := spread(run.tested[-1][part][metric] for run in one.runs):
                    found.append({**common, "line": method, **value})
                plain = spread(run.zero_shot(part, metric) for run in one.runs)
                if plain and len(keys) == 1 and method == methods[0]:
                    found.append({**common, "line": ZERO_SHOT, **plain, "std": None})
    return found


def order(point: tuple[Any, ...]) -> list[tuple[bool, float, str]]:
    """Numbers by size, before words by letters."""
    return [(False, float(v), "") if isinstance(v, int | float) else (True, 0.0, str(v)) for v in point]


def settings(table: Table) -> list[str]:
    return [key for key in table[0] if key not in {"row", "column", "line", "value", "std", "seeds"}]


def paint(canvas: Canvas, table: Table) -> None:
    keys = settings(table)
    if len(keys) == 2:
        paint_grid(canvas, table, *keys)
        return
    (key,) = keys
    values = sorted(unique(table, key), key=lambda value: order((value,)))
    # Places side by side: values of a sweep are seldom evenly spaced, and may be words.
    placed = [{**row, key: values.index(row[key])} for row in sorted(table, key=lambda row: order((row[key],)))]
    placed.sort(key=lambda row: (PARTS.index(row["row"]), METRICS.index(row["column"])))

    def finish(axes: Axes, part: str, metric: str) -> None:
        axes.set_xticks(range(len(values)), [str(value) for value in values])
        for line in unique(table, "line"):
            rows = [r for r in placed if (r["row"], r["column"], r["line"]) == (part, metric, line)]
            if line != ZERO_SHOT and len({row["value"] for row in rows}) > 1:
                best = max(rows, key=lambda row: float(row["value"]))
                axes.plot(best[key], best["value"], marker="*", color="#B00000", markersize=9, zorder=5)

    paint_lines(canvas, placed, key, "accuracy (%)", finish)


def paint_grid(canvas: Canvas, table: Table, x: str, y: str) -> None:
    """Darker is better; the best number of a panel is bold."""
    import numpy as np

    lines, parts = unique(table, "line"), unique(table, "row")
    xs, ys = (sorted(unique(table, key), key=lambda value: order((value,))) for key in (x, y))
    canvas.set_size_inches(min(WIDTH, len(parts) * (0.9 + 0.5 * len(xs))), len(lines) * (0.8 + 0.3 * len(ys)))
    panels = canvas.subplots(len(lines), len(parts), squeeze=False)
    for i, line in enumerate(lines):
        for j, part in enumerate(parts):
            axes, cells = panels[i, j], np.full((len(ys), len(xs)), np.nan)
            here = [row for row in table if (row["line"], row["row"]) == (line, part)]
            for row in here:
                cells[ys.index(row[y]), xs.index(row[x])] = row["value"]
            low, high = (end((row["value"] for row in here), default=0) for end in (min, max))
            span = high - low or 1  # black letters are read on light blues
            axes.imshow(
                cells, cmap="Blues", vmin=low - 0.2 * span, vmax=high + 0.7 * span, aspect="auto", origin="lower"
            )
            for (b, a), value in np.ndenumerate(cells):
                if value == value:
                    axes.text(a, b, f"{value:.2f}", ha="center", va="center", weight="bold" if value == high else None)
            axes.set(title=f"{line}, {part} (%)", xlabel=x, ylabel=y if j == 0 else "")
            axes.set_xticks(range(len(xs)), [str(value) for value in xs])
            axes.set_yticks(range(len(ys)), [str(value) for value in ys])
            axes.grid(visible=False)
