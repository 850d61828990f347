"""The numbers of a test, from predictions and truths. All in percent."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import f1_score

from ..data.dataset import Indices
from ..data.groups import Groups

SIGMA = 10.0  # of balancedness


@dataclass(frozen=True)
class Score:
    """None where there is nothing to score: a client may have no test images of a tail class."""

    overall: float | None  # right of all
    head: float | None  # mean accuracy of the head classes, and so on
    mid: float | None
    tail: float | None
    macro_f1: float | None
    balancedness: float | None
    per_class: tuple[float | None, ...] = ()
    worst: float | None = None  # of a mean over clients: the worst client's overall

    def summary(self) -> dict[str, float | None]:
        """Without the classes one by one."""
        return {name: value for name, value in asdict(self).items() if name != "per_class"}


NAMES = ("overall", "head", "mid", "tail", "macro_f1", "balancedness")


def score(truth: Indices, predicted: Indices, groups: Groups) -> Score:
    if len(truth) == 0:
        return Score(None, None, None, None, None, None, per_class=(None,) * groups.classes)
    accuracy = class_accuracy(truth, predicted, groups.classes)
    parts = {name: mean(accuracy[members]) for name, members in groups.items()}
    present = np.unique(truth)
    return Score(
        overall=100 * float(np.mean(truth == predicted)),
        **parts,
        macro_f1=100 * float(f1_score(truth, predicted, labels=present, average="macro", zero_division=0.0)),
        balancedness=100 * balancedness(accuracy[present] / 100),
        per_class=tuple(None if np.isnan(a) else float(a) for a in accuracy),
    )


def class_accuracy(truth: Indices, predicted: Indices, classes: int) -> NDArray[np.float64]:
    """(C,) percent right of each class; NaN where it has no sample."""
    total = np.bincount(truth, minlength=classes)
    right = np.bincount(truth[truth == predicted], minlength=classes)
    return np.where(total > 0, 100 * right / np.maximum(total, 1), np.nan)


def balancedness(accuracy: NDArray[np.float64], sigma: float = SIGMA) -> float:
    """1/C² Σ_ij exp(−σ |a_i − a_j|), a in [0, 1]: 1 if all classes are equally well known."""
    return float(np.exp(-sigma * np.abs(accuracy[:, None] - accuracy[None, :])).mean())


def mean(values: NDArray[np.float64]) -> float | None:
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else None


def mean_score(scores: list[Score]) -> Score:
    """The unweighted mean over clients, of each number over the clients that have it."""

    def over(values: list[float | None]) -> float | None:
        return mean(np.array([np.nan if v is None else v for v in values], dtype=np.float64))

    tested = [s.overall for s in scores if s.overall is not None]
    return Score(
        **{name: over([getattr(s, name) for s in scores]) for name in NAMES},
        per_class=tuple(over(list(column)) for column in zip(*(s.per_class for s in scores), strict=True)),
        worst=min(tested, default=None),
    )


def percent(part: int, whole: int) -> float | None:
    return 100 * part / whole if whole else None
