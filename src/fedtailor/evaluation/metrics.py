"""The numbers of a test, all in percent. A new one is a function of Predictions and a line in METRICS.

They are computed for many clients at once, from counts, so that ten thousand clients cost hardly more than one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..data.dataset import Indices
from ..data.groups import Groups

Numbers = NDArray[np.float64]  # NaN where there is nothing to score: a client may have no test picture of a tail class
PAIRS = 1 << 20  # of classes compared at once


@dataclass(frozen=True)
class Predictions:
    """Counts by class of K sets of test pictures, (K, C) each."""

    true: Indices  # pictures of the class
    said: Indices  # pictures that were said to be of it
    right: Indices  # both
    groups: Groups

    @cached_property
    def class_accuracy(self) -> Numbers:
        """(K, C) percent right of each class."""
        return ratio(100 * self.right, self.true)


@dataclass(frozen=True)
class Metric:
    heading: str  # in tables
    compute: Callable[[Predictions], Numbers]  # (K,)
    compared: bool = True  # whether comparison tables show it; those of single runs show all


@dataclass(frozen=True)
class Score:
    """None where there is nothing to score."""

    values: dict[str, float | None]  # of every metric
    per_class: tuple[float | None, ...] = ()  # accuracy
    worst: float | None = None  # in a mean over clients: the worst client's overall

    def __post_init__(self) -> None:
        if self.values.keys() != METRICS.keys():  # it may come from another machine
            raise ValueError(f"a score consists of {', '.join(METRICS)}")

    @property
    def overall(self) -> float | None:
        return self.values["overall"]

    def row(self, classes: Sequence[str]) -> dict[str, Any]:
        """As rounds.jsonl has it, with the classes' names."""
        return {**self.values, "worst": self.worst, "per_class": dict(zip(classes, self.per_class, strict=True))}


@dataclass(frozen=True, eq=False)
class Scores:
    """Of K sets of pictures, a client's each."""

    values: dict[str, Numbers]  # (K,) of every metric
    per_class: Numbers  # (K, C)

    @classmethod
    def of(cls, scores: Sequence[Score]) -> Scores:
        values = {name: np.array([score.values[name] for score in scores], np.float64) for name in METRICS}
        return cls(values, np.array([score.per_class for score in scores], np.float64))

    def __len__(self) -> int:
        return len(self.per_class)

    def __getitem__(self, k: int) -> Score:
        return Score({name: known(column[k]) for name, column in self.values.items()}, listed(self.per_class[k]))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Scores) and list(self) == list(other)

    def __iter__(self) -> Iterator[Score]:
        return (self[k] for k in range(len(self)))

    @property
    def overall(self) -> tuple[float | None, ...]:
        return listed(self.values["overall"])

    def mean(self) -> Score:
        """The unweighted mean over clients, of each number over the clients that have it."""
        overall = self.values["overall"][~np.isnan(self.values["overall"])]
        means = {name: known(mean(column, axis=0)) for name, column in self.values.items()}
        return Score(means, listed(mean(self.per_class, axis=0)), float(overall.min()) if len(overall) else None)


def score_parts(truth: Indices, predicted: Indices, owner: Indices, K: int, groups: Groups) -> Scores:
    """Each of K clients on its own pictures: `owner` says whose each is."""
    C = groups.classes

    def count(classes: Indices, some: Any = slice(None)) -> Indices:
        return np.bincount(owner[some] * C + classes[some], minlength=K * C).reshape(K, C)

    found = Predictions(count(truth), count(predicted), count(truth, truth == predicted), groups)
    return Scores({name: metric.compute(found) for name, metric in METRICS.items()}, found.class_accuracy)


def score(truth: Indices, predicted: Indices, groups: Groups) -> Score:
    return score_parts(truth, predicted, np.zeros_like(truth), 1, groups)[0]


def known(value: Any) -> float | None:
    return None if np.isnan(value) else float(value)


def listed(values: Numbers) -> tuple[float | None, ...]:
    if not np.isnan(values).any():
        return tuple(values.tolist())
    return tuple(None if value != value else value for value in values.tolist())  # NaN alone is not itself


def ratio(part: NDArray[Any], whole: NDArray[Any]) -> Numbers:
    """part / whole; NaN where the whole is nothing."""
    out: Numbers = np.full(np.shape(whole), np.nan)
    np.divide(part, whole, out=out, where=whole > 0)
    return out


def mean(values: Numbers, axis: int = -1) -> Numbers:
    """Over what is known."""
    return ratio(np.nansum(values, axis), (~np.isnan(values)).sum(axis))


def percent(part: int, whole: int) -> float | None:
    return 100 * part / whole if whole else None


def overall(found: Predictions) -> Numbers:
    """Right of all."""
    return ratio(100 * found.right.sum(-1), found.true.sum(-1))


def of_group(name: str, found: Predictions) -> Numbers:
    """The mean accuracy of the head, mid or tail classes."""
    return mean(found.class_accuracy[:, getattr(found.groups, name)])


def macro_f1(found: Predictions) -> Numbers:
    """Over the classes that have test pictures."""
    f1 = 200 * found.right / np.maximum(found.true + found.said, 1)
    return mean(np.where(found.true > 0, f1, np.nan))


def balancedness(found: Predictions, sigma: float = 10.0) -> Numbers:
    """1/C² Σ_ij exp(−σ |a_i − a_j|) over the classes that have test pictures: 100 if all are equally accurate."""
    accuracy = found.class_accuracy / 100
    some = max(1, PAIRS // accuracy.shape[1] ** 2)
    parts = [accuracy[i : i + some] for i in range(0, len(accuracy), some)]
    pairs = (np.exp(-sigma * np.abs(a[:, :, None] - a[:, None, :])).reshape(len(a), -1) for a in parts)
    return np.concatenate([100 * mean(pair) for pair in pairs])


TAILED = ("head", "mid", "tail")  # what only a long tail has
METRICS = {
    "overall": Metric("overall", overall),
    **{group: Metric(group, partial(of_group, group)) for group in TAILED},
    "macro_f1": Metric("macro-F1", macro_f1, compared=False),
    "balancedness": Metric("balanced", balancedness),
}
