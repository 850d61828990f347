"""Pictures as a model enters them, and a client's share of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedtailor.clip.cache import Watch, activations, encoded
from fedtailor.clip.preprocess import Preprocess
from fedtailor.core import Batch, View
from fedtailor.data.sets import Images, Indices
from fedtailor.errors import UserError
from fedtailor.model import CPU, PRECISIONS, Model
from fedtailor.rebalance.base import Balance


class Pool(Protocol):
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
class CachedPool:
    values: NDArray[np.floating[Any]]

    @property
    def fixed(self) -> bool:
        return True

    def fetch(self, indices: Indices, rng: torch.Generator | None = None) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(self.values[indices]))


@dataclass(frozen=True)
class LivePool:
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


def make_pool(
    model: Model,
    digest: str,
    images: Images,
    transform: Preprocess,
    training: bool,
    folder: Path | None = None,
    watch: Watch | None = None,
    stage: str = "",  # empty: the model's
) -> Pool:
    stage, precision = stage or model.stage, PRECISIONS[model.precision]
    if training and transform.augment:
        return LivePool(model, images, transform, stage)
    values = activations(model.clip, digest, images, transform, stage, model.device, precision, folder, watch)
    if values is None:
        return LivePool(model, images, replace(transform, augment=False), stage)
    return CachedPool(values)


class Shelf:
    """A client's training samples. Built without labels, it has none to give away."""

    def __init__(
        self,
        pool: Pool,
        indices: Indices,
        labels: Indices | None,  # of the whole pool
        classes: int,
        device: torch.device = CPU,
        plain: Pool | None = None,
    ) -> None:
        self._pool, self._indices, self.classes, self.device = pool, indices, classes, device
        self._plain = plain  # CLIP's own features of the same pictures
        self._labels = None if labels is None else torch.from_numpy(labels[indices])
        self._candidates: Tensor | None = None
        self._begin: Callable[[Tensor], Balance] | None = None

    def __len__(self) -> int:
        return len(self._indices)

    @property
    def labels(self) -> Tensor:
        if self._labels is None:
            raise UserError("this client's images have no labels; choose a labeler (labels=…) that makes some")
        return self._labels.clone()  # whatever a pass does with it

    @property
    def fixed(self) -> bool:
        return self._pool.fixed

    def counts(self) -> Tensor:
        """(C,) samples of each class."""
        return torch.bincount(self.labels, minlength=self.classes)

    def views(self, size: int = 512) -> Iterator[View]:
        """Every picture once, in order, as it is without augmentation."""
        for index in torch.arange(len(self)).split(size) if len(self) else ():
            yield View(self._fetch(self._pool, index), index, self._fetch_plain(index))

    def batches(self, size: int, drop_last: bool, rng: torch.Generator) -> Iterator[Batch]:
        """One epoch in random order. The last, smaller batch is left out if asked, unless it is the only one."""
        labels, order = self.labels, torch.randperm(len(self), generator=rng)
        whole = drop_last and len(self) >= size
        balance = self._begin(self.counts()) if self._begin else None
        for begin in range(0, len(self) - size + 1 if whole else len(self), size):
            index = order[begin : begin + size]
            yield Batch(
                self._fetch(self._pool, index, rng),
                labels[index].to(self.device),
                index,
                rng,
                self._fetch_plain(index),
                None if self._candidates is None else self._candidates[index].to(self.device),
                balance,
            )

    def labelled(self, index: Tensor, y: Tensor, candidates: Tensor | None = None) -> Shelf:
        """Some of these pictures, perhaps some of them twice, under other labels."""
        part = Shelf(self._pool, self._indices[index.numpy()], None, self.classes, self.device, self._plain)
        part._labels, part._candidates, part._begin = y, candidates, self._begin
        return part

    def balanced(self, begin: Callable[[Tensor], Balance]) -> Shelf:
        """The same samples, whose batches carry what `begin` makes of their label counts."""
        part = Shelf(self._pool, self._indices, None, self.classes, self.device, self._plain)
        part._labels, part._candidates, part._begin = self._labels, self._candidates, begin
        return part

    def split(self, fraction: float) -> tuple[Shelf, Shelf]:
        """Every n-th sample is held out: shares are dealt class by class, so that this takes some of each."""
        step = round(1 / fraction)
        held = torch.arange(len(self)) % step == step - 1
        return self._part(~held), self._part(held)

    def _part(self, mask: Tensor) -> Shelf:
        candidates = None if self._candidates is None else self._candidates[mask]
        return self.labelled(torch.nonzero(mask).flatten(), self.labels[mask], candidates)

    def _fetch(self, pool: Pool, index: Tensor, rng: torch.Generator | None = None) -> Tensor:
        return pool.fetch(self._indices[index.numpy()], rng).to(self.device)

    def _fetch_plain(self, index: Tensor) -> Tensor | None:
        return None if self._plain is None else self._fetch(self._plain, index)
