"""Head, middle and tail classes: the papers draw the lines in different places, so each rule is an object."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from .dataset import Indices


@dataclass(frozen=True, eq=False)
class Groups:
    """Class indices, ascending; every class is in exactly one group, or in none where nobody can count them."""

    head: Indices
    mid: Indices
    tail: Indices
    unknown: Indices = field(default_factory=lambda: np.empty(0, np.int64))

    @classmethod
    def of_unlabelled(cls, classes: int) -> Groups:
        none = np.empty(0, np.int64)
        return cls(none, none, none, np.arange(classes))

    @property
    def classes(self) -> int:
        return sum(map(len, (self.head, self.mid, self.tail, self.unknown)))

    def items(self) -> tuple[tuple[str, Indices], ...]:
        return ("head", self.head), ("mid", self.mid), ("tail", self.tail)

    @property
    def names(self) -> tuple[str, ...]:
        """(C,) the group of each class."""
        found = {int(label): name for name, members in self.items() for label in members}
        return tuple(found.get(label, "") for label in range(self.classes))


Rule = Callable[[Indices], Groups]


def split(head: NDArray[np.bool_], mid: NDArray[np.bool_]) -> Groups:
    return Groups(np.flatnonzero(head), np.flatnonzero(mid & ~head), np.flatnonzero(~head & ~mid))


def running_total(counts: Indices) -> Indices:
    """(C,) pictures in each class and all larger ones; of equal classes the lower index counts as the larger."""
    order = np.argsort(-counts, kind="stable")
    total = np.empty_like(counts)
    total[order] = np.cumsum(counts[order])
    return total


@dataclass(frozen=True)
class Cumulative:
    """CAPT: the largest classes that together hold at most `head` of all pictures, then at most `mid`."""

    head: float = 0.75
    mid: float = 0.95

    def __call__(self, counts: Indices) -> Groups:
        total = running_total(counts)
        return split(total <= self.head * counts.sum(), total <= self.mid * counts.sum())


@dataclass(frozen=True)
class CumulativeCrossing:
    """FedLoGe: as `Cumulative`, but the class that crosses a line still belongs to the larger group."""

    head: float = 0.75
    mid: float = 0.95

    def __call__(self, counts: Indices) -> Groups:
        before = running_total(counts) - counts
        return split(before < self.head * counts.sum(), before < self.mid * counts.sum())


@dataclass(frozen=True)
class Counts:
    """FedPuReL: head has more than `head` pictures, tail at most `tail`."""

    head: int = 100
    tail: int = 20

    def __call__(self, counts: Indices) -> Groups:
        return split(counts > self.head, counts > self.tail)


GROUPS: dict[str, Rule] = {
    "capt": Cumulative(),
    "fedloge": CumulativeCrossing(),
    "fedpurel": Counts(),
}
