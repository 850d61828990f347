"""A reply as whole numbers that can be added up, and the mean reply that their sum stands for.

Numbers are multiples of 2^-24, modulo 2^64. What a client may send is bounded by how many clients there are, so that no
sum can wrap around: who would send more is told so, and sends nothing. In a vector come the weight; for each parameter
one that says whether it is there, its weight, and its changes times the weight; for each statistic whether it is there,
and its values. Statistics all weigh the same, and counts of pictures are none: a mean of them is no count.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..base.errors import UserError
from ..core.statistics import Forms
from ..core.types import Params, Reply

UNIT = 2.0**-24
Words = NDArray[np.uint64]  # whose sums wrap around at 2^64
Reals = NDArray[np.float64]


def most(clients: int) -> float:
    """The largest number that one of so many clients may add to a sum."""
    return float(2**62 // clients) * UNIT


@dataclass(frozen=True)
class Layout:
    """Of the vectors of one pass: the same at all clients and the server."""

    start: Params  # shared parameters as they were sent
    stats: Mapping[str, Tensor]  # one like each statistic
    clients: int  # of the run

    @classmethod
    def of(cls, start: Params, forms: Forms, clients: int) -> Layout:
        for name, form in forms.items():
            if form.counts or not form.like.is_floating_point():
                raise UserError(f"{name} counts pictures, of which secure=masked makes no sum")
        return cls(start, {name: form.like for name, form in forms.items()}, clients)

    @property
    def words(self) -> int:
        return 1 + sum(2 + v.numel() for v in self.start.values()) + sum(1 + v.numel() for v in self.stats.values())

    def encoded(self, reply: Reply) -> Words:
        pieces = [np.array([reply.weight])]
        for name, start in self.start.items():
            there = name in reply.params
            change = reply.params[name].double() - start.double() if there else torch.zeros(start.shape)
            pieces += [np.array([there, there * reply.weight]), reply.weight * flat(change)]
        for name, like in self.stats.items():
            there = name in reply.stats
            pieces += [np.array([there]), flat(reply.stats[name] if there else torch.zeros(like.shape))]
        values = np.concatenate(pieces)
        if not (largest := float(np.abs(values).max())) <= most(self.clients):
            raise UserError(
                f"a weighted change of {largest:.3g} is more than {most(self.clients):.3g}, the most that each of "
                f"{self.clients} clients may add to a secure sum; a smaller lr may help"
            )
        return np.rint(values / UNIT).astype(np.int64).view(np.uint64)

    def mean(self, total: Words, clients: int) -> Reply:
        """What each of so many clients would have sent if all had sent the same; an error if it is no sum of theirs."""
        values = total.view(np.int64).astype(np.float64) * UNIT
        place = iter(np.split(values, np.cumsum(self.sizes())[:-1]))
        params, stats = Params(), Params()
        weight = within(next(place), clients * most(self.clients))
        for name, start in self.start.items():
            there, own, change = within(next(place), clients), within(next(place), weight + UNIT), next(place)
            if there:
                step = change / own if own else change
                params[name] = (start.double() + torch.from_numpy(step).reshape(start.shape)).to(start.dtype)
        for name, like in self.stats.items():
            there, value = within(next(place), clients), next(place)
            if there:
                stats[name] = torch.from_numpy(value / there).reshape(like.shape).to(like.dtype)
        return Reply(params, weight / clients, stats)

    def sizes(self) -> list[int]:
        parts = [[1, 1, v.numel()] for v in self.start.values()] + [[1, v.numel()] for v in self.stats.values()]
        return [1, *(size for part in parts for size in part)]


def flat(value: Tensor) -> Reals:
    return value.detach().cpu().double().flatten().numpy()


def within(one: Reals, largest: float) -> float:
    value = float(one[0])
    if not (math.isfinite(value) and 0 <= value <= largest):
        raise UserError(f"a sum holds {value:.6g} where 0 to {largest:.6g} is possible; somebody did not keep to it")
    return value
