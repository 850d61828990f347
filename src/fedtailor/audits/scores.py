"""How well a number tells members from others: AUC, and how many are found where one in a hundred is accused."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Scores = NDArray[np.float64]
Curve = tuple[Scores, Scores]  # false positives, true positives
RESAMPLES = 400
ACCUSED = 0.01


class Measured(NamedTuple):
    value: float
    low: float
    high: float


def auc(members: Scores, others: Scores) -> float:
    """How often a member has the larger number; half of where they are equal."""
    ordered = np.sort(others)
    below, upto = np.searchsorted(ordered, members, "left"), np.searchsorted(ordered, members, "right")
    return float((below + upto).mean() / (2 * len(others)))


def found_at(members: Scores, others: Scores, accused: float = ACCUSED) -> float:
    """The share of members above a number that this share of the others has reached, at most."""
    bar = np.sort(others)[::-1][int(accused * len(others))]
    return float((members > bar).mean())


def curve(members: Scores, others: Scores) -> Curve:
    bars = np.unique(np.concatenate([members, others]))[::-1]
    return tuple(1 - np.searchsorted(np.sort(side), bars, "left") / len(side) for side in (others, members))  # type: ignore[return-value]


def measured(members: Scores, others: Scores, rng: np.random.Generator) -> tuple[Measured, Measured]:
    """Both, with 95% intervals by a bootstrap over pictures."""
    drawn = []
    for _ in range(RESAMPLES):
        one, two = (side[rng.integers(len(side), size=len(side))] for side in (members, others))
        drawn.append((auc(one, two), found_at(one, two)))
    low, high = np.quantile(np.array(drawn), (0.025, 0.975), axis=0)
    values = auc(members, others), found_at(members, others)
    first, second = (Measured(v, float(a), float(b)) for v, a, b in zip(values, low, high, strict=True))
    return first, second
