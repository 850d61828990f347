"""Head, middle and tail classes, by the rule of each paper."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from .dataset import Indices


@dataclass(frozen=True, eq=False)
class Groups:
    """Class indices, ascending. Every class is in one group; if there are no labels to count, all are `unknown`."""

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


@dataclass(frozen=True)
class Cumulative:
    """CAPT: the largest classes that together hold at most `head` of all pictures, then at most `mid`.
    FedLoGe: the class that crosses a line still belongs to the larger group."""

    head: float = 0.75
    mid: float = 0.95
    crossing: bool = False

    def __call__(self, counts: Indices) -> Groups:
        # Pictures in each class and all larger ones; of two equal classes, the one with the lower index is larger.
        order = np.argsort(-counts, kind="stable")
        total = np.empty_like(counts)
        total[order] = np.cumsum(counts[order])
        lines = (part * counts.sum() for part in (self.head, self.mid))
        return split(*(total - counts < line if self.crossing else total <= line for line in lines))


@dataclass(frozen=True)
class Counts:
    """FedPuReL: head has more than `head` pictures, tail at most `tail`."""

    head: int = 100
    tail: int = 20

    def __call__(self, counts: Indices) -> Groups:
        return split(counts > self.head, counts > self.tail)


GROUPS: dict[str, Rule] = {"capt": Cumulative(), "fedloge": Cumulative(crossing=True), "fedpurel": Counts()}
