"""Pictures at the stage where a tuner enters the image tower: cached, or computed whenever they are asked for."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..base.progress import ProgressFn
from ..clip.encoder import Encoder
from ..clip.feature_cache import activations
from ..clip.kept import Kept
from ..core.model import PRECISIONS, Model
from ..data.dataset import Images, Indices, Readable
from ..data.preprocess import Preprocess


class FeatureStore(Protocol):
    @property
    def fixed(self) -> bool:
        """Whether a picture looks the same every time: nothing is augmented."""
        ...

    def fetch(self, indices: Indices, rng: torch.Generator | None = None) -> Tensor:
        """With a generator, and if the transform augments, random views; else the one deterministic view.

        In fp32, or in fp16 if the stage is kept so; the model reads either.
        """
        ...


@dataclass(frozen=True)
class CachedFeatures:
    values: Kept | NDArray[np.floating[Any]]
    fixed = True

    def fetch(self, indices: Indices, rng: torch.Generator | None = None) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(self.values[indices]))


@dataclass(frozen=True)
class LiveFeatures:
    """For transforms that augment, where every view is new, and for splits that the cache has no room for."""

    encoder: Encoder
    images: Readable

    @property
    def fixed(self) -> bool:
        return not self.encoder.transform.augment

    def fetch(self, indices: Indices, rng: torch.Generator | None = None) -> Tensor:
        return torch.cat(list(self.encoder.chunks(self.images, indices, rng)))


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
    precision = PRECISIONS[model.precision]
    encoder = Encoder(model.clip, digest, transform, stage or model.stage, model.device, precision)
    if training and transform.augment:
        return LiveFeatures(encoder, images)
    values = activations(encoder, images, folder, progress)
    if values is None:
        return LiveFeatures(replace(encoder, transform=replace(transform, augment=False)), images)
    return CachedFeatures(values)
