"""Long tails: how many pictures each class keeps, and which, as in CAPT and FedPuReL."""

from __future__ import annotations

import numpy as np

from .dataset import Indices, Rng, by_label


def profile(mean: float, classes: int, imbalance: float) -> Indices:
    """n_c = ⌊mean · (1/IF)^{c/(C−1)}⌋ for rank c from head to tail, (C,)."""
    last = max(classes - 1, 1)  # one class alone is all head
    return np.array([int(mean * (1 / imbalance) ** (rank / last)) for rank in range(classes)], dtype=np.int64)


def by_class(counts: Indices, order: tuple[int, ...] | None) -> Indices:
    """Counts by rank, head first, to counts by class index."""
    if order is None:
        return counts
    placed = np.empty_like(counts)
    placed[list(order)] = counts
    return placed


def thin(labels: Indices, counts: Indices, rng: Rng) -> Indices:
    """The first `counts[c]` of each class after a shuffle, class after class. A class that has fewer keeps them all."""
    classes = zip(by_label(labels, len(counts)), counts, strict=True)
    return np.concatenate([rng.permutation(members)[:count] for members, count in classes])
