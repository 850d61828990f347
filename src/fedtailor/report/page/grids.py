"""Matrices as shaded cells: who holds what, and what is taken for what. Cells of a shade are one path, so that a
matrix of a hundred classes takes kilobytes. Numbers stand in the cells where there is room; all can be read out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..figures.style import clipped
from .facts import PageRun

SHADES = 5  # and none
ROOM = 24  # columns, at most, for numbers to stand in the cells
MOST = 120  # names on a side that can be read
LETTERS = 20  # of a name


class Name(NamedTuple):
    x: float
    y: float
    text: str
    whole: str


class Number(NamedTuple):
    x: float
    y: float
    text: str
    level: int


class Grid(NamedTuple):
    anchor: str
    caption: str
    unit: str  # of a value, behind it
    size: tuple[int, int]
    corner: tuple[int, int]  # where the cells begin
    cell: tuple[int, int]
    down: Sequence[Name]
    across: Sequence[Name]
    shades: Sequence[tuple[int, str]]  # level, and a path of all its cells
    frames: str  # a path around cells that stand out
    numbers: Sequence[Number]
    values: Sequence[Sequence[str]]
    joint: str  # between a row's name and a column's, when a cell is read out


def confusion_grid(run: PageRun, part: str, anchor: str) -> Grid | None:
    """In the order of the table of classes; None if there are more than can be read."""
    assert run.answered is not None
    order, names = run.classes.order, run.classes.names
    if len(order) > MOST:
        return None
    table = run.answered.confusion[part][np.ix_(order, order)]
    share = 100 * table / np.maximum(table.sum(1, keepdims=True), 1)
    level = np.where(table == 0, 0, 1 + np.minimum(share / 100 * SHADES, SHADES - 1).astype(int))
    told = [[f"{value:.0f}" if value >= 1 else "<1" if value else "0" for value in row] for row in share.tolist()]
    caption = f"What it is (down) by what the {model_of(part)} said (across), in % of the class"
    labels = [names[c] for c in order]
    return grid(anchor, caption, "%", labels, labels, told, level, " taken for ", diagonal=True)


def model_of(part: str) -> str:
    return "shared model" if part == "global" else "clients' own models"


def holdings_grid(run: PageRun, anchor: str) -> Grid | None:
    """Training pictures of each client in each class, in the order of the table of classes; None if nobody knows."""
    counts = np.array(run.record.data.get("counts") or ())
    if not len(counts):
        return None
    order = run.classes.order[:MOST]
    some = "" if len(order) == len(run.classes.order) else f"; the {MOST} most frequent classes"
    few = "" if len(counts) <= MOST else f"; the first {MOST} clients"
    shown = counts[:MOST, order]
    depth = np.log(np.maximum(shown, 1)) / np.log(max(int(shown.max()), 1) + 1)
    level = np.where(shown == 0, 0, 1 + (depth * SHADES).astype(int))
    caption = f"Training pictures of each client (down) in each class (across), shaded by order of magnitude{some}{few}"
    told = [[str(value) for value in row] for row in shown.tolist()]
    labels = [run.classes.names[c] for c in order]
    return grid(anchor, caption, " pictures", run.record.clients[:MOST], labels, told, level, ", ", diagonal=False)


def grid(
    anchor: str,
    caption: str,
    unit: str,
    rows: Sequence[str],
    columns: Sequence[str],
    told: Sequence[Sequence[str]],
    level: NDArray[Any],
    joint: str,
    diagonal: bool,
) -> Grid:
    roomy = len(columns) <= ROOM
    w, h = (34, 22) if roomy else (14, 14) if len(columns) <= 60 else (11, 11)
    letter = 7.2 if roomy else 6.5 if len(columns) <= 60 else 5.6
    left, top = (int(10 + letter * min(LETTERS, max(map(len, names)))) for names in (rows, columns))

    def box(r: int, c: int) -> str:
        return f"M{left + c * w} {top + r * h}h{w}v{h}h-{w}z"

    cells = [(int(level[r, c]), r, c) for r in range(len(rows)) for c in range(len(columns))]
    shades = [(depth, "".join(box(r, c) for at, r, c in cells if at == depth)) for depth in range(1, SHADES + 1)]
    numbers = [
        Number(left + (c + 0.5) * w, top + (r + 0.5) * h + 4, told[r][c], at) for at, r, c in cells if roomy and at
    ]
    return Grid(
        anchor, caption, unit, (left + len(columns) * w + 2, top + len(rows) * h + 2), (left, top), (w, h),
        [named(left - 6, top + (r + 0.5) * h + h / 4 - 1, name) for r, name in enumerate(rows)],
        [named(left + (c + 0.5) * w + w / 8 + 1, top - 6, name) for c, name in enumerate(columns)],
        [(depth, path) for depth, path in shades if path],
        "".join(box(i, i) for i in range(len(rows))) if diagonal else "",
        numbers, told, joint,
    )  # fmt: skip


def named(x: float, y: float, name: str) -> Name:
    return Name(x, y, clipped(name, LETTERS), name)
