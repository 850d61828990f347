"""What audits draw."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ..report.figures.style import COLUMN, LINES, PLAIN, SETTINGS, legend

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from torch import Tensor

    from .scores import Curve

ACROSS = 0.8  # inches, of a picture


def side_by_side(rows: Sequence[str], columns: Sequence[Sequence[Tensor]], heads: Sequence[str] = ()) -> bytes:
    """Pictures (3, H, W) from 0 to 1, with those that belong together below each other."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context({**SETTINGS, "axes.grid": False}):
        figure = Figure(
            (0.6 + ACROSS * len(columns), 0.1 + ACROSS * len(rows)), layout="constrained", facecolor="white"
        )
        grid = figure.subplots(len(rows), len(columns), squeeze=False)
        for j, column in enumerate(columns):
            for i in range(len(rows)):
                axes = grid[i][j]
                axes.set(xticks=[], yticks=[])
                for spine in axes.spines.values():
                    spine.set_visible(False)
                if i < len(column):
                    axes.imshow(column[i].cpu().permute(1, 2, 0).numpy(), interpolation="nearest")
        for axes, head in zip(grid[0], heads, strict=False):
            axes.set_title(head)
        for i, name in enumerate(rows):
            grid[i][0].set_ylabel(name)
        return png(figure)


def curves(given: Mapping[str, Curve]) -> bytes:
    """True over false positives, on logarithmic axes: what counts is who is found without others being accused."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(SETTINGS):
        figure = Figure((COLUMN, COLUMN), layout="constrained", facecolor="white")
        axes = figure.subplots()
        for i, (name, (false, true)) in enumerate(given.items()):
            style = {**LINES[i % len(LINES)], "marker": ""}
            axes.plot(false, true, label=name, **style)
        least = min(float(false[false > 0].min()) for false, _ in given.values())
        axes.plot([least, 1], [least, 1], label="chance", **PLAIN)
        axes.set(xscale="log", yscale="log", xlim=(least, 1), ylim=(least, 1))
        axes.set(xlabel="others taken for members", ylabel="members found")
        legend(figure, axes)
        return png(figure)


def png(figure: Figure) -> bytes:
    file = io.BytesIO()
    figure.savefig(file, format="png")
    return file.getvalue()
