"""Label skew in two levels: every client draws its own mixture of super-classes, then of classes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from ...base.errors import UserError
from ..dataset import Dataset, Indices
from ..longtail import Rng
from .base import Alpha, Partition, Share, Shares, Weights, labels_for


class Pachinko(Partition):
    """CIFAR-100-LT in CAPT's and FedPuReL's code: every client draws its own mixture of super-classes, then of classes.

    Training and test pictures are drawn from one pool, so that a client's test set follows the same mixture.
    All pools are equally large; what is left over goes to nobody.
    """

    alpha: Alpha = Field(0.1, description="Over super-classes; small is skewed.")
    alpha_fine: Alpha = Field(10.0, title="α_fine", description="Concentration over the classes of a super-class.")

    def __call__(self, dataset: Dataset, clients: int, rng: Rng) -> Shares:
        labels, test_labels = labels_for("pachinko", dataset, clients)
        if dataset.coarse is None:
            raise UserError(f"partition pachinko needs super-classes, {dataset.name} has none; take dirichlet")
        pool = ClassBags(np.concatenate([labels, test_labels]), dataset.coarse, rng)
        mixtures = [Mixture(self.alpha, self.alpha_fine, pool.children, rng) for _ in range(clients)]
        size, n = pool.size // clients, len(labels)
        drawn = [np.array([mixture.draw(pool, rng) for _ in range(size)], dtype=np.int64) for mixture in mixtures]
        # The first had the most to choose from: which clients they are should be chance.
        dealt = [drawn[k] for k in rng.permutation(clients)]
        return tuple(Share(held[held < n], held[held >= n] - n) for held in dealt)


class ClassBags:
    """Pictures to draw from without putting back, by class, and which labels still have any."""

    def __init__(self, labels: Indices, coarse: Indices, rng: Rng) -> None:
        self.size = len(labels)
        self.coarse = coarse
        self.children = [np.flatnonzero(coarse == parent) for parent in range(int(coarse.max()) + 1)]
        by_class = [np.flatnonzero(labels == label) for label in range(len(coarse))]
        self.left: list[list[int]] = [rng.permutation(members).tolist() for members in by_class]
        self.has = np.array([len(left) > 0 for left in self.left])  # (C,)
        self.has_any = np.array([bool(self.has[members].any()) for members in self.children])

    def take(self, label: int) -> int:
        picture = self.left[label].pop()
        if not self.left[label]:
            parent = int(self.coarse[label])
            self.has[label] = False
            self.has_any[parent] = self.has[self.children[parent]].any()
        return picture


class Mixture:
    """One client's weights over super-classes, and over the classes of each."""

    def __init__(self, alpha: float, alpha_fine: float, children: list[Indices], rng: Rng) -> None:
        self.alpha, self.alpha_fine = alpha, alpha_fine
        self.coarse: Weights = rng.dirichlet(np.full(len(children), alpha))
        self.fine: list[Weights] = [rng.dirichlet(np.full(len(members), alpha_fine)) for members in children]

    def draw(self, pool: ClassBags, rng: Rng) -> int:
        """One picture; labels that have run out give their weight to the others."""
        self.coarse = renormalised(self.coarse, pool.has_any, self.alpha, rng)
        parent = pick(self.coarse, rng)
        members = pool.children[parent]
        self.fine[parent] = renormalised(self.fine[parent], pool.has[members], self.alpha_fine, rng)
        return pool.take(int(members[pick(self.fine[parent], rng)]))


def renormalised(weights: Weights, available: NDArray[np.bool_], alpha: float, rng: Rng) -> Weights:
    """The weights of what is available; drawn anew over it where none is left (a small α underflows to zero)."""
    kept: Weights = weights * available
    if kept.sum() == 0:
        kept = np.zeros_like(weights)
        kept[available] = rng.dirichlet(np.full(int(available.sum()), alpha))
    kept /= kept.sum()
    return kept


def pick(weights: Weights, rng: Rng) -> int:
    """An index with that probability, never one of weight zero."""
    edges = np.cumsum(weights)
    return int(np.searchsorted(edges / edges[-1], rng.uniform(), side="right"))
