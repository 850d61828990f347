"""A federation without pictures: random numbers stand where the feature cache would be, everything else is real.

`assemble` builds the experiment as for any run; only what it gets from the feature cache is replaced, so that there may
be ten thousand clients without drawing, storing or encoding a picture.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from inspect import signature
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor

from fedtailor.clip.load import load
from fedtailor.core.model import Model
from fedtailor.data.dataset import Dataset, Indices, Split, histogram
from fedtailor.data.federation import Federation
from fedtailor.data.groups import GROUPS
from fedtailor.data.partitions.base import Share
from fedtailor.data.preprocess import Pixels
from fedtailor.settings.run import Run, make_run
from fedtailor.simulation import build
from fedtailor.simulation.build import Experiment

CLASSES = tuple(f"thing number {i}" for i in range(10))
TABLE = 1024  # different pictures


@dataclass(frozen=True)
class NoPictures:
    """So many pictures that nobody can look at."""

    size: int
    name: str

    def __len__(self) -> int:
        return self.size

    def read(self, index: int) -> Pixels:
        raise RuntimeError("there are no pictures here")

    def subset(self, indices: Indices) -> NoPictures:
        return NoPictures(len(indices), f"part of {self.name}")

    @property
    def fingerprint(self) -> str:
        return f"{self.name}, {self.size}"


@dataclass(frozen=True)
class RandomFeatures:
    """Any number of pictures at some stage, out of a small table: memory does not grow with them."""

    table: Tensor
    fixed = True

    def fetch(self, indices: Indices, rng: torch.Generator | None = None) -> Tensor:
        return self.table[torch.from_numpy(np.asarray(indices) % len(self.table))]


@contextmanager
def random_features() -> Iterator[None]:
    def features(model: Model, *given: Any, **named: Any) -> RandomFeatures:
        asked = signature(before).bind(model, *given, **named).arguments
        size, stage = model.clip.shape.image_size, asked.get("stage") or model.stage
        pixels = torch.randn(1, 3, size, size, generator=torch.Generator().manual_seed(0))
        with torch.no_grad():
            like = model.clip.vision(pixels, "pixels", stage)
        return RandomFeatures(torch.randn(TABLE, *like.shape[1:], generator=torch.Generator().manual_seed(1)))

    before: Any = vars(build)["make_features"]
    with patch.object(build, "make_features", features):
        yield


def synthetic(method: str, clients: int, train: int, tests: int, **settings: Any) -> Experiment:
    """The bundled CLIP, ten classes, `train` pictures a client; `tests` test pictures in all, dealt out evenly."""
    run: Run = make_run(method, {"clients": clients, **settings})
    shares = tuple(
        Share(np.arange(k * train, (k + 1) * train), part.astype(np.int64))
        for k, part in enumerate(np.array_split(np.arange(tests), clients))
    )
    rng = np.random.default_rng(0)
    labels, truth = (rng.integers(len(CLASSES), size=n) for n in (clients * train, tests))
    dataset = Dataset(
        "random", CLASSES, "a picture of a {}.",
        Split(NoPictures(len(labels), "train"), labels), Split(NoPictures(tests, "test"), truth),
    )  # fmt: skip
    groups = GROUPS[run.data.groups](histogram(labels, len(CLASSES)))
    with random_features():
        return build.assemble(run, Federation(dataset, shares), groups, load())
