"""CPU seconds over size, log-log, a panel for each thing that grows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple


class Curve(NamedTuple):
    what: str  # grows
    label: str
    sizes: list[int]
    values: list[float]  # CPU seconds
    exponent: float
    end: float  # the exponent between the last two points


def plot(curves: Sequence[Curve], file: Path) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    panels = list(dict.fromkeys(curve.what for curve in curves))
    figure = Figure(figsize=(10, 3.6 * ((len(panels) + 1) // 2)), layout="constrained")
    FigureCanvasAgg(figure)
    for number, what in enumerate(panels, 1):
        axes = figure.add_subplot((len(panels) + 1) // 2, 2, number)
        for each in (curve for curve in curves if curve.what == what):
            axes.loglog(each.sizes, each.values, marker="o", label=f"{each.label}: {each.exponent:.2f}")
        axes.set_xlabel(what)
        axes.set_ylabel("CPU seconds")
        axes.grid(alpha=0.3)
        axes.legend(title="exponent", fontsize="small")
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=120)
