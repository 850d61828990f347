"""A client's training samples."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from copy import copy
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

from ..base.errors import UserError
from ..core.model import CPU, to_device
from ..core.types import Balance, Batch, View
from ..data.dataset import UNKNOWN, Indices
from .features import FeatureStore


class OutOfTime(UserError):  # noqa: N818  # as it reads
    """A pass took longer than its client allows."""


class ClientData:
    """A client's training samples. Without labels, there is no way from here to any."""

    def __init__(
        self,
        pool: FeatureStore,
        indices: Indices,
        labels: Indices | None,  # of the whole pool; UNKNOWN where a picture has none
        classes: int,
        device: torch.device = CPU,
        plain: FeatureStore | None = None,
    ) -> None:
        self._pool, self._indices, self.classes, self.device = pool, indices, classes, device
        self._plain = plain  # CLIP's own features of the same pictures
        self._labels = None if labels is None else torch.from_numpy(labels[indices])
        self._candidates: Tensor | None = None
        self._begin: Callable[[Tensor], Balance] | None = None
        self._orders: Iterator[Indices] | None = None
        self._end = math.inf

    def __len__(self) -> int:
        return len(self._indices)

    @property
    def labels(self) -> Tensor:
        return self._given().clone()  # a pass may change it

    def _given(self) -> Tensor:
        if self._labels is None:
            raise UserError("this client's images have no labels; choose a labeler (labels=…) that makes some")
        return self._labels

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
        """One epoch in random order. `drop_last` leaves out a smaller last batch, unless it is the only one."""
        order = self._order(rng)
        whole = drop_last and len(self) >= size
        balance = self._begin(self.counts()) if self._begin else None
        for begin in range(0, len(self) - size + 1 if whole else len(self), size):
            yield self.some(order[begin : begin + size], rng, balance)

    def some(self, index: Tensor, rng: torch.Generator, balance: Balance | None = None) -> Batch:
        x, plain = self._fetch(self._pool, index, rng), self._fetch_plain(index)
        candidates = None if self._candidates is None else to_device(self._candidates[index], self.device)
        return Batch(x, to_device(self._given()[index], self.device), index, rng, plain, candidates, balance)

    @cached_property
    def _known(self) -> Tensor:
        """(n,) which pictures have a label of their own."""
        return torch.zeros(len(self), dtype=torch.bool) if self._labels is None else self._labels != UNKNOWN

    def unlabelled(self) -> ClientData:
        """The pictures without a label of their own, in order: what a labeler sees."""
        part = self._of(~self._known)
        part._labels = None
        return part

    def completed(self, index: Tensor, y: Tensor, candidates: Tensor | None = None) -> ClientData:
        """The pictures with a label of their own and, behind them, those of the others that a labeler chose."""
        known, others = (torch.nonzero(it).flatten() for it in (self._known, ~self._known))
        if not len(known):
            return self.labelled(index, y, candidates)
        own = self._given()[known]
        if candidates is not None:
            candidates = torch.cat([F.one_hot(own, self.classes).to(candidates.dtype), candidates])
        return self.labelled(torch.cat([known, others[index]]), torch.cat([own, y]), candidates)

    def labelled(self, index: Tensor, y: Tensor, candidates: Tensor | None = None) -> ClientData:
        """Some of these pictures, perhaps some of them twice, under other labels."""
        part = self._of(index)
        part._labels, part._candidates = y, candidates
        return part

    def balanced(self, begin: Callable[[Tensor], Balance]) -> ClientData:
        """The same samples, whose batches carry what `begin` makes of their label counts."""
        part = copy(self)
        part._begin = begin
        return part

    def in_order(self, orders: Iterable[Indices]) -> ClientData:
        """The same samples, for checks against other codes: each epoch goes by the next of these orders of them."""
        part = copy(self)
        part._orders = iter(orders)
        return part

    def _order(self, rng: torch.Generator) -> Tensor:
        if self._orders is None:
            return torch.randperm(len(self), generator=rng)
        order = next(self._orders, None)
        if order is None or sorted(order) != list(range(len(self))):
            got = "no further one" if order is None else f"{len(order)} places"
            raise UserError(f"an epoch's order must have each of {len(self)} samples once, got {got}")
        return torch.as_tensor(order)

    def until(self, end: float) -> ClientData:
        """The same samples, which can be had until then (time.monotonic): so a pass over them comes to an end."""
        part = copy(self)
        part._end = end
        return part

    def few(self, index: Tensor) -> ClientData:
        """Those in these places, with what is known of their labels."""
        part = self._of(index)
        part._labels = None if self._labels is None else self._labels[index]
        part._candidates = None if self._candidates is None else self._candidates[index]
        return part

    @property
    def places(self) -> Indices:
        """Of these pictures, among those of all clients."""
        return self._indices

    def split(self, fraction: float) -> tuple[ClientData, ClientData]:
        """What is left, and every n-th sample, held out."""
        step = round(1 / fraction)
        held = torch.arange(len(self)) % step == step - 1
        return self._part(~held), self._part(held)

    def _of(self, index: Tensor) -> ClientData:
        """Those in these places, or where this is true; their labels are the caller's to give."""
        part = copy(self)
        part._indices = self._indices[index.numpy()]
        part.__dict__.pop("_known", None)
        return part

    def _part(self, mask: Tensor) -> ClientData:
        candidates = None if self._candidates is None else self._candidates[mask]
        return self.labelled(torch.nonzero(mask).flatten(), self.labels[mask], candidates)

    def _fetch(self, pool: FeatureStore, index: Tensor, rng: torch.Generator | None = None) -> Tensor:
        if time.monotonic() > self._end:
            raise OutOfTime("the pass took longer than it may")
        return to_device(pool.fetch(self._indices[index.numpy()], rng), self.device)

    def _fetch_plain(self, index: Tensor) -> Tensor | None:
        return None if self._plain is None else self._fetch(self._plain, index)
