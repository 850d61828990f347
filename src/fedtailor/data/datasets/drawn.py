"""`drawn`: forty kinds of small figure, drawn by code from a seed, so that a first run needs no download.

A class is a texture, a colour and a shape ("striped red heart"); many classes differ from another in one of the three.
The pictures are dim, grainy and partly covered. `scripts/pretrain.py` draws the bundled CLIP's pretraining world with
the same pen (`draw`) in other, mostly clearer styles: adapting from those to this one is what there is to learn.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...base.rng import numpy_generator
from ..dataset import ArrayImages, Dataset, Indices, Split
from ..paper import Pixels
from .files import PHOTO

Field = NDArray[np.floating[Any]]  # (N, SIDE, SIDE), one value per pixel
SIDE = 32
CHUNK = 256  # pictures drawn at once: small enough to stay in the processor's cache

# A long tail is cut in this order, the first class the largest. It is a shuffle whose thirds the bundled CLIP knows
# about equally well, so that what a method does to head and tail is not mixed up with that.
CLASSES = (
    "striped red heart", "striped white heart", "shaded white arrow", "plain purple crescent", "wavy green diamond",
    "dotted blue star", "dotted blue flower", "plain brown flower", "checked blue diamond", "plain brown triangle",
    "checked yellow triangle", "wavy orange diamond", "plain purple ring", "plain teal square", "shaded pink circle",
    "dotted orange arrow", "striped green hexagon", "checked red triangle", "dotted brown ring", "shaded yellow arrow",
    "striped orange diamond", "checked blue ring", "checked teal cross", "checked yellow arrow", "plain teal cross",
    "dotted white hexagon", "dotted white square", "wavy blue ring", "shaded teal hexagon", "plain white square",
    "dotted brown arrow", "shaded teal square", "wavy red triangle", "striped red hexagon", "wavy orange cross",
    "shaded pink heart", "dotted blue crescent", "dotted purple flower", "plain red crescent", "plain red ring",
)  # fmt: skip

COLOURS: dict[str, tuple[float, float, float]] = {
    "red": (0.85, 0.12, 0.12),
    "blue": (0.15, 0.30, 0.90),
    "green": (0.15, 0.65, 0.20),
    "yellow": (0.95, 0.88, 0.15),
    "white": (0.95, 0.95, 0.95),
    "orange": (0.95, 0.52, 0.08),
    "purple": (0.52, 0.18, 0.75),
    "pink": (0.95, 0.52, 0.72),
    "brown": (0.48, 0.28, 0.12),
    "teal": (0.05, 0.62, 0.62),
}


def sides(u: Field, v: Field, count: int, start: float) -> Field:
    """The support function of a regular polygon: how far out a point is along the normal of its nearest side."""
    turns = start + 2 * np.pi * np.arange(count) / count
    along = [np.float32(np.cos(a)) * u + np.float32(np.sin(a)) * v for a in turns]
    return np.asarray(np.maximum.reduce(along))


def petals(u: Field, v: Field, count: int) -> Field:
    """A wave around the centre, which makes stars and flowers."""
    return np.cos(count * (np.arctan2(v, u) - np.float32(np.pi / 2)))


# Each is positive inside the figure, zero on its edge, and falls about one per unit outside; v points up.
SHAPES: dict[str, Callable[[Field, Field], Field]] = {
    "circle": lambda u, v: 0.88 - np.hypot(u, v),
    "square": lambda u, v: 0.76 - np.maximum(abs(u), abs(v)),
    "triangle": lambda u, v: 0.50 - sides(u, v + 0.15, 3, -np.pi / 2),
    "star": lambda u, v: 0.66 + 0.36 * np.arcsin(0.98 * petals(u, v, 5)) / 1.4 - np.hypot(u, v),
    "heart": lambda u, v: 0.78 - np.hypot(u, 1.1 * v + 0.15 - 0.6 * np.sqrt(abs(u))),
    "cross": lambda u, v: np.maximum(np.minimum(0.9 - abs(u), 0.28 - abs(v)), np.minimum(0.28 - abs(u), 0.9 - abs(v))),
    "ring": lambda u, v: 0.22 - abs(np.hypot(u, v) - 0.68),
    "diamond": lambda u, v: 0.55 - 0.85 * abs(u) - 0.55 * abs(v),
    "hexagon": lambda u, v: 0.78 - sides(u, v, 6, 0.0),
    "crescent": lambda u, v: np.minimum(0.9 - np.hypot(u, v), np.hypot(u - 0.42, v) - 0.66),
    "arrow": lambda u, v: np.maximum(
        0.42 - sides(u, v - 0.15, 3, -np.pi / 2), np.minimum(0.2 - abs(u), 0.45 - abs(v + 0.5))
    ),
    "flower": lambda u, v: 0.68 + 0.20 * petals(u, v, 6) - np.hypot(u, v),
}


def step(wave: Field) -> Field:
    """A wave made steep: 0 or 1 with a soft edge, so that 32 pixels can show it."""
    return np.asarray(np.clip(0.5 + 1.5 * wave, 0, 1))


# Each says how much of the figure's own colour a point has; the rest is the second colour.
TEXTURES: dict[str, Callable[[Field, Field], Field]] = {
    "plain": lambda u, v: np.ones_like(u),
    "striped": lambda u, v: step(np.sin(9.5 * u + 0.8)),
    "dotted": lambda u, v: step(0.45 - np.cos(8 * u) * np.cos(8 * v)),
    "checked": lambda u, v: step(2 * np.sin(6.5 * u) * np.sin(6.5 * v)),
    "wavy": lambda u, v: step(np.sin(9.5 * v + 1.6 * np.sin(5 * u))),
    "shaded": lambda u, v: np.clip(0.5 + 0.75 * v, 0, 1),
}


@dataclass(frozen=True)
class Style:
    """How a picture is taken; each pair is a range that every picture draws its own value from."""

    size: tuple[float, float] = (0.6, 0.9)  # radius of the figure, 1 = half the picture
    noise: tuple[float, float] = (0.02, 0.06)  # grain, as a standard deviation
    contrast: tuple[float, float] = (0.9, 1.1)
    light: tuple[float, float] = (-0.05, 0.05)  # added to every pixel
    cover: float = 0.0  # chance that a bar hides part of the figure
    mottle: float = 0.10  # strength of the background's soft patches
    tint: float = 0.06  # how far a colour strays from its name


# The style of `drawn`: faded, grainy and dim at once.
DUSK = Style(
    size=(0.55, 0.85), noise=(0.05, 0.10), contrast=(0.5, 0.85), light=(-0.2, 0.05), cover=0.15, mottle=0.2, tint=0.07
)
PALETTE: Field = np.array(list(COLOURS.values()), np.float32)


def draw(
    kinds: Indices, styles: Sequence[Style], style: Indices, rng: np.random.Generator, ground: Indices | None = None
) -> Pixels:
    """Pictures (N, SIDE, SIDE, 3) of figures `kinds` (N, 3): texture, colour, shape; each in the style `styles[style]`.
    `ground` (N,) gives the backgrounds' colours; -1, and the default, is a greyish colour of the picture's own."""
    ground = np.full(len(kinds), -1) if ground is None else ground
    if len(kinds) > CHUNK:
        chunks = [slice(at, at + CHUNK) for at in range(0, len(kinds), CHUNK)]
        return np.concatenate([draw(kinds[some], styles, style[some], rng, ground[some]) for some in chunks])
    n, (texture, colour, shape) = len(kinds), kinds.T

    def fixed(name: str) -> Field:
        return np.array([getattr(s, name) for s in styles], np.float32)[style]

    def between(low: Field | float, high: Field | float) -> Field:
        return rng.uniform(low, high, (n, 1, 1)).astype(np.float32)

    def ranged(name: str) -> Field:
        return between(*fixed(name).T[..., None, None])

    # Where the figure lies: the picture's grid in the figure's own coordinates.
    line = (np.arange(SIDE, dtype=np.float32) - (SIDE - 1) / 2) / (SIDE / 2)
    size, tilt = ranged("size"), between(-0.25, 0.25)
    slack = 0.8 * (1 - size)
    x = (line[None, None, :] - slack * between(-1, 1)) / size
    y = (-line[None, :, None] - slack * between(-1, 1)) / size
    u, v = np.cos(tilt) * x + np.sin(tilt) * y, np.cos(tilt) * y - np.sin(tilt) * x

    inside, mix = np.empty_like(u), np.empty_like(u)
    for values, kind, known in ((inside, shape, SHAPES), (mix, texture, TEXTURES)):
        for index, function in enumerate(known.values()):
            mine = np.flatnonzero(kind == index)
            values[mine] = function(u[mine], v[mine])
    inside = np.clip(0.5 + inside * size * (SIDE / 2), 0, 1)

    # A bar across the figure, in the background's place.
    across = np.where(rng.random((n, 1, 1)) < 0.5, x, y)
    bar = abs(across - between(-0.8, 0.8)) < between(0.1, 0.2)
    covered = rng.random(n) < fixed("cover")
    inside[covered] *= ~bar[covered]

    # Colours: the figure's own, a second one (mostly a shade, at times a tint of the first), and the background.
    own = PALETTE[colour] + fixed("tint")[:, None] * rng.standard_normal((n, 3), np.float32)
    pale = (rng.random(n) < 0.3) & (PALETTE[colour].min(axis=1) < 0.9)  # a tint of white would not show
    second = 0.25 * own + 0.75 * pale[:, None].astype(np.float32)
    grey = between(0.15, 0.85)[:, 0] + 0.08 * rng.standard_normal((n, 3), np.float32)
    behind = np.where(ground[:, None] < 0, grey, 0.7 * PALETTE[ground] + 0.15).astype(np.float32)
    soften = np.maximum(0, 1 - abs(np.arange(SIDE)[:, None] / SIDE * 4 - np.arange(5))).astype(np.float32)
    patches = soften @ rng.standard_normal((n, 5, 5), np.float32) @ soften.T * fixed("mottle")[:, None, None]

    contrast, light, noise = ranged("contrast"), ranged("light") + 0.5, ranged("noise")
    grain = rng.standard_normal((n, 3, SIDE, SIDE), np.float32)
    out = np.empty((n, SIDE, SIDE, 3), np.uint8)
    for channel in range(3):
        far, a, b = (c[:, channel, None, None] for c in (behind, own, second))
        back = far + patches
        plane = back + inside * (b + mix * (a - b) - back)
        plane = (np.clip(plane, 0, 1) - 0.5) * contrast + light + noise * grain[:, channel]
        out[..., channel] = np.clip(plane * 255 + 0.5, 0, 255)
    return out


def parts(name: str) -> tuple[int, int, int]:
    """ "striped red star" as the indices of its texture, colour and shape."""
    texture, colour, shape = name.split()
    return list(TEXTURES).index(texture), list(COLOURS).index(colour), list(SHAPES).index(shape)


def drawn(seed: int = 0, train: int = 300, test: int = 50) -> Dataset:
    """The balanced dataset, with so many pictures of each class. A long tail is cut from it later, in class order."""
    kinds = np.array([parts(name) for name in CLASSES])

    def split(part: str, count: int) -> Split:
        labels = np.repeat(np.arange(len(CLASSES)), count)
        pixels = draw(kinds[labels], [DUSK], np.zeros_like(labels), numpy_generator("drawn", seed, part))
        return Split(ArrayImages(pixels), labels)

    return Dataset("drawn", CLASSES, PHOTO, split("train", train), split("test", test), coarse=kinds[:, 2])
