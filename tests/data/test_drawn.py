"""The embedded dataset: from a seed, balanced, disjoint, and of classes that can be told apart."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from fedtailor.data.dataset import ArrayImages, Dataset, Split
from fedtailor.data.datasets.drawn import CLASSES, COLOURS, DUSK, SHAPES, TEXTURES, Style, draw, drawn, parts


def pixels(split: Split) -> np.ndarray:
    assert isinstance(split.images, ArrayImages)
    return split.images.pixels


@pytest.fixture(scope="module")
def data() -> Dataset:
    return drawn(0)


def test_shapes_and_balance(data: Dataset) -> None:
    assert len(data.classes) == len(CLASSES) >= 30
    for split, each in ((data.train, 300), (data.test, 50)):
        assert pixels(split).shape == (each * len(CLASSES), 32, 32, 3)
        assert pixels(split).dtype == np.uint8
        assert split.labels is not None
        assert np.bincount(split.labels).tolist() == [each] * len(CLASSES)
    assert data.coarse is not None
    assert [list(SHAPES)[shape] for shape in data.coarse] == [name.split()[2] for name in CLASSES]


def test_the_seed_decides() -> None:
    one, again, other = (drawn(seed, train=20, test=10) for seed in (0, 0, 1))
    for part in ("train", "test"):
        assert np.array_equal(pixels(getattr(one, part)), pixels(getattr(again, part)))
        assert not np.array_equal(pixels(getattr(one, part)), pixels(getattr(other, part)))


def test_no_picture_twice(data: Dataset) -> None:
    seen = {picture.tobytes() for split in (data.train, data.test) for picture in pixels(split)}
    assert len(seen) == len(data.train) + len(data.test)


def test_smaller_sets_are_drawn_as_well() -> None:
    few = drawn(0, train=3, test=2)
    assert (len(few.train), len(few.test)) == (3 * len(CLASSES), 2 * len(CLASSES))


def test_names_are_texture_colour_shape() -> None:
    assert len(set(CLASSES)) == len(CLASSES)
    for name in CLASSES:
        texture, colour, shape = parts(name)
        assert name == f"{list(TEXTURES)[texture]} {list(COLOURS)[colour]} {list(SHAPES)[shape]}"


def test_most_classes_have_a_near_neighbour() -> None:
    near = {name for pair in combinations(CLASSES, 2) for name in pair if shared(*pair) == 2}
    assert len(near) > 0.8 * len(CLASSES)


def shared(a: str, b: str) -> int:
    return sum(x == y for x, y in zip(a.split(), b.split(), strict=True))


def test_every_kind_looks_different() -> None:
    """The same scene, with one attribute changed: without grain, at least 20 of its 1024 pixels change visibly."""
    still = Style(noise=(0, 0), mottle=0, tint=0)

    def picture(kind: tuple[int, int, int]) -> np.ndarray:
        drawing = draw(np.array([kind]), [still], np.zeros(1, np.int64), np.random.default_rng(0))
        return np.asarray(drawing[0], int)

    for axis, kinds in enumerate((TEXTURES, COLOURS, SHAPES)):
        views = [picture(tuple(i if a == axis else 0 for a in range(3))) for i in range(len(kinds))]  # type: ignore[arg-type]
        for a, b in combinations(views, 2):
            assert (abs(a - b).max(axis=-1) > 20).sum() >= 20


def test_classes_differ_in_the_mean(data: Dataset) -> None:
    means = pixels(data.train).reshape(len(CLASSES), 300, -1).mean(axis=1)
    gaps = [abs(a - b).mean() for a, b in combinations(means, 2)]
    assert min(gaps) > 0.5


def test_a_chunk_does_not_show() -> None:
    """More pictures than are drawn at once come out whole, and none of them empty."""
    kinds = np.zeros((600, 3), np.int64)
    views = draw(kinds, [DUSK], np.zeros(600, np.int64), np.random.default_rng(0))
    assert views.shape == (600, 32, 32, 3)
    assert (views.std(axis=(1, 2, 3)) > 5).all()
