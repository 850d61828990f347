"""Long tails: how many pictures each class keeps, and which, as in CAPT and FedPuReL; head, middle and tail classes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from numpy.typing import NDArray

from .dataset import Indices, Rng, by_label, histogram


def profile(mean: float, classes: int, imbalance: float, order: tuple[int, ...] | None = None) -> Indices:
    """(C,) n_c = ⌊mean · (1/IF)^{c/(C−1)}⌋ for rank c from head to tail; `order` has the classes by rank."""
    last = max(classes - 1, 1)  # one class alone is all head
    counts = np.array([int(mean * (1 / imbalance) ** (rank / last)) for rank in range(classes)], dtype=np.int64)
    return counts if order is None else counts[np.argsort(order)]


def thin(labels: Indices, counts: Indices, rng: Rng, order: tuple[int, ...] | None = None) -> Indices:
    """The first `counts[c]` of each class after a shuffle, class after class. A class that has fewer keeps them all."""
    members = by_label(labels, len(counts))
    return np.concatenate([rng.permutation(members[c])[: counts[c]] for c in order or range(len(counts))])


@dataclass(frozen=True, eq=False)
class Groups:
    """Class indices, ascending. Every class is in one group; without labels to count, or a tail, all are `unknown`."""

    head: Indices
    mid: Indices
    tail: Indices
    unknown: Indices = field(default_factory=lambda: np.empty(0, np.int64))

    @classmethod
    def nowhere(cls, classes: int) -> Groups:
        none = np.empty(0, np.int64)
        return cls(none, none, none, np.arange(classes))

    @classmethod
    def of_known(cls, known: Mapping[str, Sequence[int]], classes: int) -> Groups:
        """From head, mid and tail by name; all other classes are unknown."""
        groups = {name: np.array(known[name], np.int64) for name in ("head", "mid", "tail")}
        return cls(**groups, unknown=np.setdiff1d(np.arange(classes), np.concatenate([*groups.values()])))

    @property
    def some(self) -> bool:
        """Whether any class is in a group."""
        return len(self.unknown) < self.classes

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


def split(head: NDArray[np.bool_], mid: NDArray[np.bool_]) -> Groups:
    return Groups(np.flatnonzero(head), np.flatnonzero(mid & ~head), np.flatnonzero(~head & ~mid))


def by_share(counts: Indices, crossing: bool = False) -> Groups:
    """CAPT: the largest classes that together hold at most 75% of all pictures, then at most 95%.
    FedLoGe: the class that crosses a line still belongs to the larger group."""
    # Pictures in each class and all larger ones; of two equal classes, the one with the lower index is larger.
    order = np.argsort(-counts, kind="stable")
    total = np.cumsum(counts[order])[np.argsort(order)]
    lines = (part * counts.sum() for part in (0.75, 0.95))
    return split(*(total - counts < line if crossing else total <= line for line in lines))


def by_count(counts: Indices) -> Groups:
    """FedPuReL: head has more than 100 pictures, tail at most 20."""
    return split(counts > 100, counts > 20)


GROUPS: dict[str, Callable[[Indices], Groups]] = {
    "capt": by_share,
    "fedloge": partial(by_share, crossing=True),
    "fedpurel": by_count,
}

# The largest class has so many times the pictures of the smallest, or there is no tail. The papers' long tails begin at
# 10; balanced classes, and those that merely differ a little, would be called head and tail by their order alone.
TAIL = 3


def has_tail(counts: Indices) -> bool:
    """Of the classes that have pictures: one without any is no rare one."""
    there = counts[counts > 0]
    return len(there) > 0 and bool(there.max() >= TAIL * there.min())


def find_groups(rule: str, labels: Indices | None, classes: int) -> Groups:
    """Of training pictures, where there are labels and a tail."""
    counts = None if labels is None else histogram(labels, classes)
    return Groups.nowhere(classes) if counts is None or not has_tail(counts) else GROUPS[rule](counts)
