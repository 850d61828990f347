"""The numbers of a test, all in percent. A new one is a function of Predictions and a line in METRICS."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import f1_score

from ..data.dataset import Indices
from ..data.groups import Groups


@dataclass(frozen=True)
class Predictions:
    """True and predicted classes of some test pictures, at least one where a metric sees them."""

    truth: Indices
    predicted: Indices
    groups: Groups

    @cached_property
    def class_accuracy(self) -> NDArray[np.float64]:
        """(C,) percent right of each class; NaN where it has no picture."""
        total = np.bincount(self.truth, minlength=self.groups.classes)
        right = np.bincount(self.truth[self.truth == self.predicted], minlength=self.groups.classes)
        return np.where(total > 0, 100 * right / np.maximum(total, 1), np.nan)


@dataclass(frozen=True)
class Metric:
    heading: str  # in tables
    compute: Callable[[Predictions], float | None]
    compared: bool = True  # whether comparison tables show it; those of single runs show all


@dataclass(frozen=True)
class Score:
    """None where there is nothing to score: a client may have no test pictures of a tail class."""

    values: dict[str, float | None]  # of every metric
    per_class: tuple[float | None, ...] = ()  # accuracy
    worst: float | None = None  # in a mean over clients: the worst client's overall

    def __post_init__(self) -> None:
        if self.values.keys() != METRICS.keys():  # it may come from another machine
            raise ValueError(f"a score consists of {', '.join(METRICS)}")

    @property
    def overall(self) -> float | None:
        return self.values["overall"]

    def row(self) -> dict[str, Any]:
        """As rounds.jsonl has it."""
        return {**self.values, "worst": self.worst, "per_class": list(self.per_class)}


def score(truth: Indices, predicted: Indices, groups: Groups) -> Score:
    found = Predictions(truth, predicted, groups)
    values = {name: metric.compute(found) if len(truth) else None for name, metric in METRICS.items()}
    return Score(values, tuple(None if np.isnan(a) else float(a) for a in found.class_accuracy))


def mean_score(scores: list[Score]) -> Score:
    """The unweighted mean over clients, of each number over the clients that have it."""

    def over(values: list[float | None]) -> float | None:
        return mean(np.array([np.nan if v is None else v for v in values], dtype=np.float64))

    return Score(
        {name: over([s.values[name] for s in scores]) for name in METRICS},
        tuple(over(list(column)) for column in zip(*(s.per_class for s in scores), strict=True)),
        min((s.overall for s in scores if s.overall is not None), default=None),
    )


def mean(values: NDArray[np.float64]) -> float | None:
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else None


def percent(part: int, whole: int) -> float | None:
    return 100 * part / whole if whole else None


def overall(found: Predictions) -> float:
    """Right of all."""
    return 100 * float(np.mean(found.truth == found.predicted))


def of_group(name: str, found: Predictions) -> float | None:
    """The mean accuracy of the head, mid or tail classes."""
    return mean(found.class_accuracy[getattr(found.groups, name)])


def macro_f1(found: Predictions) -> float:
    """Over the classes that have test pictures."""
    truth, predicted = found.truth, found.predicted
    return 100 * float(f1_score(truth, predicted, labels=np.unique(truth), average="macro", zero_division=0.0))


def balanced(found: Predictions) -> float:
    return 100 * balancedness(found.class_accuracy[np.unique(found.truth)] / 100)


def balancedness(accuracy: NDArray[np.float64], sigma: float = 10.0) -> float:
    """1/C² Σ_ij exp(−σ |a_i − a_j|), a in [0, 1]: 1 if all classes are equally accurate."""
    return float(np.exp(-sigma * np.abs(accuracy[:, None] - accuracy[None, :])).mean())


METRICS = {
    "overall": Metric("overall", overall),
    **{group: Metric(group, partial(of_group, group)) for group in ("head", "mid", "tail")},
    "macro_f1": Metric("macro-F1", macro_f1, compared=False),
    "balancedness": Metric("balanced", balanced, compared=False),
}
