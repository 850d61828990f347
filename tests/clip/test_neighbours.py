"""A picture's cached values, to the bit, whichever pictures are encoded beside it and in however many threads."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import cache

import numpy as np
import pytest
import torch

from fedtailor.base.errors import UserError
from fedtailor.base.rng import generator
from fedtailor.clip.encoder import Encoder
from fedtailor.clip.load import load
from fedtailor.clip.model import Clip, Shape
from fedtailor.data.dataset import ArrayImages
from fedtailor.data.preprocess import Preprocess
from tiny import RESNET, tiny_clip

TEXT = {"context": 77, "vocab": 66, "text_width": 64, "text_layers": 1, "text_heads": 1}
# As wide as a ViT-B and an RN50, with fewer layers.
WIDE = Shape(embed=512, image_size=96, patch=16, vision_width=768, vision_layers=2, vision_heads=12, **TEXT)
CONVOLVED = Shape(
    embed=1024, image_size=64, patch=0, vision_width=64, vision_layers=(1, 1, 1, 1), vision_heads=32, **TEXT
)
IMAGES = ArrayImages(np.random.default_rng(0).integers(0, 256, (50, 32, 32, 3)).astype(np.uint8))
CASES = [
    ("bundled", "features", None),
    ("bundled", "block2", None),
    ("bundled", "patches", None),
    ("bundled", "features", torch.bfloat16),
    ("wide", "features", None),
    ("wide", "block1", None),
    ("resnet", "features", None),
    ("convolved", "features", None),
    ("convolved", "map", None),
]


@cache
def clip_of(name: str) -> Clip:
    shapes = {"wide": WIDE, "resnet": RESNET, "convolved": CONVOLVED}
    return load("bundled").clip if name == "bundled" else tiny_clip(shapes[name])


@pytest.fixture(params=[1, 2, 3])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def encoder_of(name: str, stage: str = "features", precision: torch.dtype | None = None, **how: bool | str) -> Encoder:
    clip = clip_of(name)
    size = {"wide": 96, "convolved": 64}.get(name, 32)
    transform = Preprocess(size, (0.5, 0.5, 0.5), (0.25, 0.25, 0.25), **how)  # type: ignore[arg-type]
    return Encoder(clip, "digest", transform, stage, torch.device("cpu"), precision)


def values(encoder: Encoder, indices: np.ndarray, rng: torch.Generator | None = None) -> torch.Tensor:
    return torch.cat(list(encoder.chunks(IMAGES, indices, rng)))


@cache
def in_one_thread(name: str, stage: str, precision: torch.dtype | None) -> torch.Tensor:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return values(encoder_of(name, stage, precision), np.arange(50))
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(("name", "stage", "precision"), CASES)
def test_neighbours_and_threads_do_not_matter(
    name: str, stage: str, precision: torch.dtype | None, threads: int
) -> None:
    """Alone, in parts of a chunk, in several, in any order."""
    whole, encoder = in_one_thread(name, stage, precision), encoder_of(name, stage, precision)
    for size in (1, 2, 7, 16, 17, 40):
        some = np.random.default_rng(size).permutation(50)[:size]
        assert torch.equal(values(encoder, some), whole[some])
    assert torch.get_num_threads() == threads


@pytest.mark.parametrize("resize", ["bicubic", "bilinear", "late"])
def test_views_do_not_depend_on_threads_either(resize: str, threads: int) -> None:
    """The torch half of a transform runs in the workers, too."""
    encoder = encoder_of("convolved", "pixels", resize=resize)
    expected = torch.stack([encoder.transform(IMAGES.read(i)) for i in range(50)])
    assert torch.equal(values(encoder, np.arange(50)), expected)


def test_random_views_are_drawn_in_order(threads: int) -> None:
    """One after the other from the generator, whoever encodes them."""
    encoder, rng = encoder_of("bundled", "pixels", augment=True), generator(7)
    expected = torch.stack([encoder.transform(IMAGES.read(i), rng) for i in range(50)])
    assert torch.equal(values(encoder, np.arange(50), generator(7)), expected)
    assert torch.equal(values(encoder, np.arange(50)), values(encoder_of("bundled", "pixels"), np.arange(50)))


class Torn(ArrayImages):
    """Picture 20 cannot be read, and 40 even less."""

    def read(self, index: int) -> np.ndarray:
        if index in (20, 40):
            raise UserError(f"cannot read the picture {index}")
        return super().read(index)


def test_the_first_picture_that_cannot_be_read_is_named(threads: int) -> None:
    found = []
    with pytest.raises(UserError, match="cannot read the picture 20"):
        found.extend(encoder_of("bundled").chunks(Torn(IMAGES.pixels), np.arange(50)))
    assert len(found) == 1  # those before it came
    assert torch.get_num_threads() == threads
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("worker") and leaves(thread)]


def leaves(thread: threading.Thread) -> bool:
    thread.join(10)
    return thread.is_alive()


@pytest.mark.parametrize("name", ["bundled", "resnet"])
def test_features_are_the_tower_s(name: str, threads: int) -> None:
    """The last chunk is filled up, which nobody sees."""
    encoder = encoder_of(name)
    with torch.no_grad():
        pixels = torch.stack([encoder.transform(IMAGES.read(i)) for i in range(19)])
        expected = encoder.clip.vision(pixels, "pixels", "features")
    torch.testing.assert_close(values(encoder, np.arange(19)), expected, atol=1e-5, rtol=1e-5)
