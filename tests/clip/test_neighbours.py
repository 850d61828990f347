"""A picture's cached values, to the bit, whichever pictures are encoded beside it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from fedtailor.clip import feature_cache
from fedtailor.clip.load import load
from fedtailor.clip.model import Clip
from fedtailor.data.dataset import ArrayImages
from fedtailor.data.preprocess import Preprocess
from tiny import RESNET, tiny_clip

PLAIN = Preprocess(32, (0.5, 0.5, 0.5), (0.25, 0.25, 0.25))
IMAGES = ArrayImages(np.random.default_rng(0).integers(0, 256, (50, 32, 32, 3)).astype(np.uint8))
CASES = [("bundled", "features"), ("bundled", "block2"), ("bundled", "patches"), ("resnet", "features")]


@pytest.fixture(scope="module")
def clips() -> dict[str, Clip]:
    return {"bundled": load("bundled").clip, "resnet": tiny_clip(RESNET)}


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def values(clip: Clip, indices: np.ndarray, stage: str) -> torch.Tensor:
    encoder = feature_cache.Encoder(clip, "digest", PLAIN, stage, torch.device("cpu"))
    return torch.cat(list(encoder.chunks(IMAGES, indices)))


@pytest.mark.parametrize(("name", "stage"), CASES)
def test_neighbours_do_not_matter(clips: dict[str, Clip], name: str, stage: str, threads: int) -> None:
    """Alone, in parts of a chunk, in several, in any order."""
    whole = values(clips[name], np.arange(50), stage)
    for size in (1, 2, 3, 15, 16, 17, 40):
        some = np.random.default_rng(size).permutation(50)[:size]
        assert torch.equal(values(clips[name], some, stage), whole[some])
    assert torch.get_num_threads() == threads


def test_the_number_of_threads_comes_back_after_an_error(threads: int) -> None:
    seen = []

    class Torn:
        stages = ("pixels", "map", "features", "patches")

        def __call__(self, x: torch.Tensor, start: str, stop: str) -> torch.Tensor:
            seen.append((start, stop, torch.get_num_threads()))
            if stop == "features":
                raise RuntimeError("torn")
            return x

    with pytest.raises(RuntimeError, match="torn"):
        feature_cache.encode_to_stage(Torn(), torch.zeros(1), "features")  # type: ignore[arg-type]
    assert seen == [("pixels", "map", threads), ("map", "features", 1)]
    assert torch.get_num_threads() == threads


def test_features_are_the_tower_s(clips: dict[str, Clip]) -> None:
    """The last chunk is filled up, which nobody sees."""
    pixels = torch.stack([PLAIN(IMAGES.read(i)) for i in range(19)])
    for clip in clips.values():
        with torch.no_grad():
            expected = clip.vision(pixels, "pixels", "features")
        torch.testing.assert_close(values(clip, np.arange(19), "features"), expected, atol=1e-5, rtol=1e-5)
