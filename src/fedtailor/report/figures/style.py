"""How figures look: in print, in one column of a page, and without colour."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...base.errors import UserError
from ...base.files import write_atomic
from .record import ZERO_SHOT, Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

WIDTH = 6.9  # inches: two columns of a page
COLUMN = 3.4  # one
NAMES = 60  # class names on an axis, at most
FORMATS = (".png", ".svg")
SETTINGS: Any = {
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "legend.fontsize": 7,
    "legend.handlelength": 3,  # for dashes to be seen
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "axes.grid": True,
    "grid.color": "0.88",
    "grid.linewidth": 0.5,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "lines.linewidth": 1.2,
    "lines.markersize": 4,
    "hatch.linewidth": 0.6,
    "savefig.dpi": 200,
    "svg.fonttype": "none",  # letters stay letters
    "svg.hashsalt": "fedtailor",  # the same records, the same file
}
# Colours that the colour-blind can tell apart (Okabe and Ito); in print, dashes and markers tell.
LINES: tuple[dict[str, Any], ...] = (
    {"color": "#000000", "linestyle": "-", "marker": "o"},
    {"color": "#0072B2", "linestyle": "--", "marker": "s"},
    {"color": "#D55E00", "linestyle": "-.", "marker": "^"},
    {"color": "#009E73", "linestyle": ":", "marker": "D"},
    {"color": "#CC79A7", "linestyle": (0, (5, 1)), "marker": "v"},
    {"color": "#E69F00", "linestyle": (0, (3, 1, 1, 1)), "marker": "P"},
    {"color": "#56B4E9", "linestyle": (0, (1, 1)), "marker": "X"},
    {"color": "#666666", "linestyle": (0, (6, 2, 1, 2)), "marker": "*"},
)
BARS: tuple[dict[str, Any], ...] = (
    {"facecolor": "#999999", "hatch": ""},
    {"facecolor": "#8FC3E8", "hatch": "////"},
    {"facecolor": "#F3C08F", "hatch": "...."},
    {"facecolor": "#FFFFFF", "hatch": "xxxx"},
    {"facecolor": "#D9D9D9", "hatch": "\\\\\\\\"},
    {"facecolor": "#FFFFFF", "hatch": "----"},
)
PLAIN: dict[str, Any] = {"color": "0.35", "linestyle": (0, (1, 1.5)), "linewidth": 1.0}  # of a line to compare with


def look(names: Sequence[str], looks: Sequence[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Each name's, in the same order in every figure; zero-shot CLIP has one of its own."""
    others = [name for name in names if name != ZERO_SHOT]
    found = {name: looks[i % len(looks)] for i, name in enumerate(others)}
    return {name: found.get(name, PLAIN) for name in names}


def unique(table: Table, key: str) -> list[Any]:
    """The values of a column, in their order."""
    return list(dict.fromkeys(row[key] for row in table))


def legend(canvas: Canvas, axes: Axes) -> None:
    """Above everything; long labels have fewer columns."""
    handles, labels = axes.get_legend_handles_labels()
    columns = max(1, int(canvas.get_figwidth() / (0.45 + 0.06 * max(map(len, labels)))))
    canvas.legend(handles, labels, loc="outside upper center", ncols=min(columns, len(labels)), frameon=False)


def class_ticks(axes: Axes, names: Sequence[str], axis: str) -> None:
    """Class names under the columns, upright; of more than there is room for, every nth."""
    step = -(-len(names) // NAMES)
    axes.set_xlabel(axis if step == 1 else f"{axis} (one in {step} is named)")
    axes.set_xticks(range(0, len(names), step), [clipped(name) for name in names[::step]], rotation=90)
    axes.tick_params(axis="x", labelsize=7 if len(names) <= 40 else 5.5)
    axes.grid(visible=False, axis="x")


def clipped(name: str, most: int = 22) -> str:
    return name if len(name) <= most else f"{name[: most - 1]}…"


def save(table: Table, paint: Callable[[Canvas, Table], None], path: Path) -> list[Path]:
    """The picture, and next to it the numbers that are in it."""
    import matplotlib  # here: it takes longer to load than the rest takes
    from matplotlib.figure import Figure as Canvas

    if path.suffix not in FORMATS:
        raise UserError(f"{path} is neither .png nor .svg; --out takes a file of one of these")
    with matplotlib.rc_context(SETTINGS):
        canvas = Canvas(layout="constrained", facecolor="white")
        paint(canvas, table)
        picture = io.BytesIO()
        metadata = {"Date": None} if path.suffix == ".svg" else {}
        canvas.savefig(picture, format=path.suffix[1:], metadata=metadata)
    numbers = path.with_suffix(".csv")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, picture.getvalue())
        write_atomic(numbers, as_csv(table).encode())
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}; choose another --out") from error
    return [path, numbers]


def as_csv(table: Table) -> str:
    """A line a drawn number; empty where there is none."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(dict.fromkeys(key for row in table for key in row)), lineterminator="\n")
    writer.writeheader()
    writer.writerows(table)
    return text.getvalue()
