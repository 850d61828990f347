"""Lines over rounds, as shapes for a template to draw. Dashes and markers tell lines apart, colour only helps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from ..figures.record import METRICS, PARTS, series_of, spread
from .facts import PageRun

WIDTH, HEIGHT = 340, 220  # of a panel; on a narrow screen it is about as wide as that
LEFT, RIGHT, TOP, BOTTOM = 34, 12, 8, 34
LOOKS = 8  # kinds of line that the style sheet has
MARKS = 10  # on a line, at most: more would hide its dashes
SHAPES = (  # a marker of each look, around its middle
    "m-3.5 0a3.5 3.5 0 1 0 7 0a3.5 3.5 0 1 0-7 0z",
    "m-3 -3h6v6h-6z",
    "m0 -4l4 7h-8z",
    "m0 -4.5l4 4.5l-4 4.5l-4 -4.5z",
    "m0 4l4 -7h-8z",
    "m-1 -4h2v3h3v2h-3v3h-2v-3h-3v-2h3z",
    "m-3.5 -3.5l7 7m0 -7l-7 7",
    "m-4 -1.2h8v2.4h-8z",
)


class Point(NamedTuple):
    x: float
    y: float
    std: float | None = None


class Line(NamedTuple):
    name: str
    look: int
    points: Sequence[Point]


class Drawn(NamedTuple):
    name: str
    look: int
    path: str
    band: str  # mean ± standard deviation over seeds; empty with one seed
    marks: Sequence[tuple[str, str]]  # a path each, and what it says


class Chart(NamedTuple):
    title: str
    lines: Sequence[Drawn]
    across: Sequence[tuple[float, str]]  # ticks
    up: Sequence[tuple[float, str]]
    told: str  # the same in words
    size: tuple[int, int, int, int, int, int] = (WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM)


class Sample(NamedTuple):
    """A line of the legend."""

    name: str
    look: int
    shape: str


def sample(name: str, i: int) -> Sample:
    return Sample(name, i % LOOKS, f"M18 7{SHAPES[i % LOOKS]}")


def curves(runs: Sequence[PageRun]) -> tuple[list[Sample], list[Chart]]:
    """Of one run, its groups of classes in a panel for each kind of model; of several, a panel for each group too, with
    the runs in it. Round 0 is zero-shot CLIP."""
    if not any(run.record.tested for run in runs):
        return [], []
    if len(runs) == 1:
        shown = [name for name in METRICS if name in runs[0].metrics()]
        panels = {part: [Line(name, i, points(runs, part, name)) for i, name in enumerate(shown)] for part in PARTS}
        names = shown
    else:
        by_folder, series = {run.record.folder: run for run in runs}, series_of(run.record for run in runs)
        kin = [[by_folder[record.folder] for record in one.runs] for one in series]
        names, panels = [one.label for one in series], {}
        for part in PARTS:
            for name in METRICS:
                lines = [Line(label, i, points(kin[i], part, name)) for i, label in enumerate(names)]
                panels[f"{part}, {name}"] = lines
    drawn = [draw(title, lines) for title, lines in panels.items() if any(len(line.points) > 1 for line in lines)]
    seen = {line.name for chart in drawn for line in chart.lines}
    return [sample(name, i) for i, name in enumerate(names) if name in seen], drawn


def points(runs: Sequence[PageRun], part: str, metric: str) -> list[Point]:
    """The mean over these runs, which are seeds of one setting."""
    found = {0: spread(run.before(part).get(metric) for run in runs if run.record.tested)}
    for t in sorted({row["round"] for run in runs for row in run.record.tested}):
        found[t] = spread(row[part].get(metric) for run in runs for row in run.record.tested if row["round"] == t)
    return [Point(t, it["value"], it["std"]) for t, it in found.items() if it]


def draw(title: str, lines: Sequence[Line]) -> Chart:
    lines = [line for line in lines if len(line.points) > 1]
    every = [point for line in lines for point in line.points]
    low, high = min(p.y - (p.std or 0) for p in every), max(p.y + (p.std or 0) for p in every)
    up, across = ticks(low, high), ticks(0, max(p.x for p in every), whole=True)
    bottom, top, end = min(up[0], low), max(up[-1], high), max(across[-1], *(p.x for p in every))

    def place(x: float, y: float) -> tuple[float, float]:
        right = LEFT + (WIDTH - LEFT - RIGHT) * x / end
        return round(right, 1), round(TOP + (HEIGHT - TOP - BOTTOM) * (top - y) / (top - bottom), 1)

    def path(at: Sequence[tuple[float, float]]) -> str:
        return "M" + "L".join(f"{x} {y}" for x, y in at)

    drawn = []
    for line in lines:
        spots = [place(p.x, p.y) for p in line.points]
        spread_out = any(p.std for p in line.points)
        edge = [place(p.x, p.y + (p.std or 0)) for p in line.points]
        edge += [place(p.x, p.y - (p.std or 0)) for p in reversed(line.points)]
        step = math.ceil(len(spots) / MARKS)
        shown = [i for i in range(len(spots)) if i % step == 0 or i == len(spots) - 1]
        marks = [
            (f"M{spots[i][0]} {spots[i][1]}{SHAPES[line.look % LOOKS]}", said(line.name, line.points[i])) for i in shown
        ]
        drawn.append(Drawn(line.name, line.look % LOOKS, path(spots), path(edge) + "z" if spread_out else "", marks))
    told = "; ".join(f"{ln.name} from {ln.points[0].y:.1f} to {ln.points[-1].y:.1f}" for ln in lines)
    return Chart(
        title, drawn, [(place(t, bottom)[0], f"{t:g}") for t in across], [(place(0, t)[1], f"{t:g}") for t in up], told
    )


def said(name: str, point: Point) -> str:
    where = "zero-shot" if point.x == 0 else f"round {point.x:g}"
    return f"{name}, {where}: {point.y:.2f}" + ("" if point.std is None else f" ± {point.std:.2f}")


def ticks(low: float, high: float, whole: bool = False) -> list[float]:
    """About five round numbers that hold all values between them; of rounds, whole ones below the last."""
    high = high if high > low else low + 1
    rough = (high - low) / 4
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(step * power for step in (1, 2, 2.5, 5, 10) if step * power >= rough * 0.999)
    if whole:
        step = max(1.0, math.ceil(step))
        return [i * step for i in range(int(high / step) + 1)]
    first, last = math.floor(low / step), math.ceil(high / step)
    return [round(i * step, 6) for i in range(first, last + 1)]
