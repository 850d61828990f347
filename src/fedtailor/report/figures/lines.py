"""Lines in panels, with a band over seeds: what most figures are."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .record import RunRecord, Table, dig, series_of, spread
from .style import LINES, WIDTH, legend, look, unique

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

Path = tuple[str, ...]  # of keys to a number in a line of rounds.jsonl
Panels = Mapping[tuple[str, str], Path | Mapping[str, Path]]  # row, column → number, or several by what they are called


def over_rounds(runs: Sequence[RunRecord], panels: Panels) -> Table:
    """A row for each line, panel and round that has the number."""
    table: Table = []
    for one in series_of(runs):
        rounds = sorted({row["round"] for run in one.runs for row in run.rounds})
        for (down, across), numbers in panels.items():
            for name, path in numbers.items() if isinstance(numbers, Mapping) else (("", numbers),):
                line = f"{one.label}, {name}" if name else one.label
                for t in rounds:
                    found = spread(dig(row, *path) for run in one.runs for row in run.rounds if row["round"] == t)
                    if found:
                        table.append({"row": down, "column": across, "line": line, "round": t, **found})
    return table


def paint_lines(
    canvas: Canvas, table: Table, x: str = "round", y: str = "", each: Callable[[Axes, str, str], None] | None = None
) -> None:
    """Panels by "row" and "column". Rows share what their y axis shows; `each` adds to a panel."""
    downs, acrosses, styles = unique(table, "row"), unique(table, "column"), look(unique(table, "line"), LINES)
    canvas.set_size_inches(min(WIDTH, 0.6 + 3.0 * len(acrosses)), 0.7 + 1.7 * len(downs))
    panels = canvas.subplots(len(downs), len(acrosses), squeeze=False, sharex=True)
    for i, down in enumerate(downs):
        for j, across in enumerate(acrosses):
            axes = panels[i, j]
            here = [row for row in table if (row["row"], row["column"]) == (down, across)]
            for line in unique(table, "line"):  # a line that this panel lacks is in the legend all the same
                draw_line(axes, [row for row in here if row["line"] == line], x, line, styles[line])
            if each is not None:
                each(axes, down, across)
            if i == 0:
                axes.set_title(across)
            if j == 0:
                axes.set_ylabel(f"{down}\n{y}".strip() if len(downs) > 1 or not y else y)
            if i == len(downs) - 1:
                axes.set_xlabel(x)
            if x == "round":
                axes.xaxis.get_major_locator().set_params(integer=True)
    legend(canvas, panels[0, 0])


def draw_line(axes: Axes, rows: Table, x: str, line: str, style: Mapping[str, Any]) -> None:
    at, mean = [row[x] for row in rows], [row["value"] for row in rows]
    # Markers stay apart however many rounds there are.
    axes.plot(at, mean, label=line, markevery=max(1, len(at) // 12), **style)
    if any(row["std"] is not None for row in rows):
        low, high = ([row["value"] + sign * (row["std"] or 0) for row in rows] for sign in (-1, 1))
        axes.fill_between(at, low, high, color=style["color"], alpha=0.15, linewidth=0)
