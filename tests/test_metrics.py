"""The numbers of a test, on predictions that can be counted by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fedtailor.data.groups import Groups
from fedtailor.evaluation.metrics import NAMES, Score, balancedness, mean_score, score

GROUPS = Groups(np.array([0]), np.array([1, 2]), np.array([3]))


def counted(truth: list[int], predicted: list[int]) -> Score:
    return score(np.array(truth, dtype=np.int64), np.array(predicted, dtype=np.int64), GROUPS)


def test_by_hand() -> None:
    """Class 0: 3 of 4, class 1: 1 of 2, class 2: 2 of 2, class 3: 0 of 2; 6 of 10 in all.

    F1 = 2 right / (2 right + wrongly named + missed): 6/8, 2/4, 4/6, 0; their mean is 0.4791667.
    Balancedness of (0.75, 0.5, 1, 0): the distances are 0.25 twice, 0.5 twice, 0.75 and 1, each counted twice:
    (4 + 2 (2 e^-2.5 + 2 e^-5 + e^-7.5 + e^-10)) / 16
    """
    found = counted([0, 0, 0, 0, 1, 1, 2, 2, 3, 3], [0, 0, 0, 1, 1, 2, 2, 2, 0, 2])
    assert found.overall == pytest.approx(60)
    assert (found.head, found.mid, found.tail) == pytest.approx((75, (50 + 100) / 2, 0))
    assert found.macro_f1 == pytest.approx(100 * (6 / 8 + 2 / 4 + 4 / 6 + 0) / 4)
    e = math.exp
    assert found.balancedness == pytest.approx(100 * (4 + 2 * (2 * e(-2.5) + 2 * e(-5) + e(-7.5) + e(-10))) / 16)
    assert found.per_class == pytest.approx((75, 50, 100, 0))
    assert found.worst is None


def test_head_and_tail_are_means_of_classes() -> None:
    """Mid has 1 of 1 and 0 of 9: 50 by class, though 10 by picture."""
    assert counted([1] + [2] * 9, [1] + [0] * 9).mid == pytest.approx(50)


def test_absent_classes_are_left_out() -> None:
    """Without pictures of classes 2 and 3: mid is class 1 alone, tail unknown; naming class 3 adds no class to F1.

    F1 of class 0: 1 right, 1 missed: 2/3; of class 1: 1.
    """
    found = counted([0, 0, 1], [0, 3, 1])
    assert (found.head, found.mid, found.tail) == (pytest.approx(50), pytest.approx(100), None)
    assert found.per_class == (pytest.approx(50), pytest.approx(100), None, None)
    assert found.macro_f1 == pytest.approx(100 * (2 / 3 + 1) / 2)
    assert found.balancedness == pytest.approx(100 * (2 + 2 * math.exp(-5)) / 4)


def test_nothing_to_test() -> None:
    """A client without test pictures has no numbers, not zeros."""
    found = counted([], [])
    assert [getattr(found, name) for name in NAMES] == [None] * 6
    assert found.per_class == (None,) * 4


def test_balancedness() -> None:
    """1 for equal classes at any level; 1/C² (2 + 2 e^-σ) for one class known and one not."""
    assert balancedness(np.array([0.3, 0.3, 0.3])) == 1
    assert balancedness(np.array([0.0, 1.0]), sigma=2) == pytest.approx((2 + 2 * math.exp(-2)) / 4)


def test_mean_over_clients() -> None:
    """Each number is the plain mean over the clients that have it; the worst client is the least overall."""
    a = Score(80, 90, None, 10, 70, 50, per_class=(100, None))
    b = Score(40, 50, None, None, 30, 30, per_class=(50, None))
    nobody = Score(None, None, None, None, None, None, per_class=(None, None))
    mean = mean_score([a, b, nobody])
    assert mean == Score(60, 70, None, 10, 50, 40, per_class=(75, None), worst=40)
    assert mean_score([nobody]).overall is None
    assert mean_score([nobody]).worst is None


def test_summary_is_without_classes() -> None:
    """What goes into result.json."""
    assert set(counted([0], [0]).summary()) == {*NAMES, "worst"}
