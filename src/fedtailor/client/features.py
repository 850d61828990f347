"""Pictures as a model enters them: cached, or computed whenever they are asked for."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..clip.feature_cache import ProgressFn, activations, encoded
from ..core.model import PRECISIONS, Model
from ..data.dataset import Images, Indices
from ..data.preprocess import Preprocess


class FeatureStore(Protocol):
    """All pictures of a split at the stage where the tuner enters the image tower."""

    @property
    def fixed(self) -> bool:
        """Whether a picture looks the same every time: nothing is augmented."""
        ...

    def fetch(self, indices: Indices, rng: torch.Generator | None = None) -> Tensor:
        """With a generator, and where the transform augments, random views; else the one deterministic view.

        In fp32, or in fp16 where the stage is kept so; the model reads either.
        """
        ...


@dataclass(frozen=True)
class CachedFeatures:
    values: NDArray[np.floating[Any]]

    @property
    def fixed(self) -> bool:
        return True

    def fetch(self, indices: Indices, rng: torch.Generator | None = None) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(self.values[indices]))


@dataclass(frozen=True)
class LiveFeatures:
    """For transforms that augment, where every view is new, and for splits that the cache has no room for: the frozen
    part of the tower is run for each picture that is asked for."""

    model: Model
    images: Images
    transform: Preprocess
    stage: str

    @property
    def fixed(self) -> bool:
        return not self.transform.augment

    def fetch(self, indices: Indices, rng: torch.Generator | None = None) -> Tensor:
        model, precision = self.model, PRECISIONS[self.model.precision]
        return torch.cat(
            list(encoded(model.clip, self.images, indices, self.transform, self.stage, model.device, precision, rng))
        )


def make_features(
    model: Model,
    digest: str,
    images: Images,
    transform: Preprocess,
    training: bool,
    folder: Path | None = None,
    progress: ProgressFn | None = None,
    stage: str = "",  # empty: the model's
) -> FeatureStore:
    stage, precision = stage or model.stage, PRECISIONS[model.precision]
    if training and transform.augment:
        return LiveFeatures(model, images, transform, stage)
    values = activations(model.clip, digest, images, transform, stage, model.device, precision, folder, progress)
    if values is None:
        return LiveFeatures(model, images, replace(transform, augment=False), stage)
    return CachedFeatures(values)
