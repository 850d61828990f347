"""The numbers of a run that are taken over several rounds."""

from __future__ import annotations

import statistics
from typing import Any

import pytest

import fedtailor
from fedtailor.evaluation.metrics import METRICS
from fedtailor.runs.result import balanced, best, last_mean, rounds_with


def row(t: int, shared: float, personal: float) -> dict[str, Any]:
    return {"round": t, "global": dict.fromkeys(METRICS, shared), "personal": dict.fromkeys(METRICS, personal)}


def test_rounds_without_personal_parts_do_not_count() -> None:
    """Broken: FedPuReL's personal number averages rounds in which no client had a part of its own, or the best of them
    is such a round; and its last shared round counts twice in the global number."""
    tested = [*(row(t, t, 90) for t in range(1, 21)), row(21, 20, 70)]
    shared, personal = (rounds_with(part, tested, 20) for part in ("global", "personal"))
    assert last_mean(personal, "personal") == dict.fromkeys(METRICS, 70)
    assert best(personal, "personal") == {"round": 21, **dict.fromkeys(METRICS, 70)}
    assert last_mean(shared, "global") == dict.fromkeys(METRICS, 15.5)  # rounds 11 to 20
    assert best(shared, "global") == {"round": 20, **dict.fromkeys(METRICS, 20)}


def test_without_closing_rounds_every_round_counts() -> None:
    tested = [row(t, t, 100 - t) for t in range(1, 21)]
    assert [rounds_with(part, tested, 20) for part in ("global", "personal")] == [tested, tested]


def test_a_run_that_ends_with_a_personal_phase(small: dict[str, Any]) -> None:
    """Broken: result.json has the mean over all of its last rounds."""
    made = fedtailor.run("fedpurel", {**small, "method.T_p": 2})
    *before, closing = made.rounds
    assert closing["round"] == 4
    assert made.summary["last10"]["personal"]["overall"] == round(closing["personal"]["overall"], 4)
    assert made.summary["best"]["personal"]["round"] == 4
    means = statistics.fmean(row["global"]["overall"] for row in before)
    assert made.summary["last10"]["global"]["overall"] == pytest.approx(means, abs=1e-4)


def test_balanced() -> None:
    """Classes count the same, and only those that have test pictures."""
    assert balanced({"per_class": {"oak": 100.0, "elm": None, "ash": 50.0}}) == 75
    assert balanced({"per_class": {"oak": None}}) is None
