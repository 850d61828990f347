"""Median and trimmed: number by number, what lies outside the middle of the round's values is pulled in.

After Yin et al., Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates, ICML 2018.
Departures: values beyond the cut are set to the last value within it, not left out, so that every client still has a
reply, and methods that average in clusters or class by class can; with equal weights `trimmed` is thus the winsorised
mean, and `median` the paper's coordinate-wise median.
"""

import math
from abc import abstractmethod

import torch
from pydantic import Field
from torch import Tensor

from .base import FEW, Changes, Robust


class Ordered(Robust):
    @abstractmethod
    def cut(self, replies: int) -> int:
        """How many of so many values are cut off at either end."""

    def changed(self, changes: dict[int, Changes]) -> dict[int, Changes]:
        pulled = {k: Changes(change) for k, change in changes.items()}
        for name in sorted({name for change in changes.values() for name in change}):
            senders = [k for k, change in changes.items() if name in change]
            if len(senders) >= FEW:
                middle = within(torch.stack([changes[k][name] for k in senders]), self.cut(len(senders)))
                pulled |= {k: Changes({**pulled[k], name: value}) for k, value in zip(senders, middle, strict=True)}
        return pulled


class Trimmed(Ordered):
    share: float = Field(0.2, ge=0, lt=0.5, description="of the round's values, cut off at either end")

    def cut(self, replies: int) -> int:
        return math.ceil(self.share * replies - 1e-9)


class Median(Ordered):
    def cut(self, replies: int) -> int:
        return replies


def within(values: Tensor, cut: int) -> Tensor:
    """(K, …) values, those beyond the `cut` smallest and largest pulled in; at half of them and more, the median."""
    ordered, K = values.sort(0).values, len(values)
    if 2 * cut >= K:
        return ((ordered[(K - 1) // 2] + ordered[K // 2]) / 2).expand_as(values)
    return values.clamp(ordered[cut], ordered[K - 1 - cut])
