"""What CAPT's server decided: clusters, and its bandit."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from seen_rounds import seen_round

from fedtailor.algorithms.clustering import ClusterSettings
from fedtailor.evaluation.diagnostics.server import bandit, clusters
from fedtailor.simulation.build import Experiment
from world import world


def capt(**more: Any) -> Experiment:
    small = {"fraction": 1.0, "rounds": 6, "method.n_similar": 2, "method.n_diverse": 3, "data.server": 0.2}
    return world("capt", "coupled+class_prompt", **{**small, **more})


def test_clusters_before_they_are_dissolved() -> None:
    """A global aggregation forgets them at once; the record has them, as the two clusterings gave them."""
    seen = seen_round(capt())
    assert not seen.after.cluster_of
    counts = seen.after.state["counts"].numpy()
    similar, diverse = ClusterSettings(n_similar=2, n_diverse=3).labels(counts, seed=0)
    assert clusters(seen) == {
        "similar": {str(k): int(c) for k, c in enumerate(similar)},
        "diverse": {str(k): int(c) for k, c in enumerate(diverse)},
    }
    assert len(set(clusters(seen)["diverse"].values())) > 1


def test_clusters_of_the_cohort_alone() -> None:
    """Clients of earlier rounds keep their clusters, but are not in this round's record."""
    seen = seen_round(capt(fraction=0.5, **{"method.bandit": False, "method.period": 5}), number=3)
    assert len(seen.after.cluster_of["similar"]) > len(seen.cohort)
    assert list(clusters(seen)["similar"]) == [str(k) for k in seen.cohort]


def test_clusters_of_a_method_that_notes_nothing() -> None:
    """Those that the server has; a client of the cohort may be in none."""
    seen = seen_round(world("fedavg", "text_prompt"))
    one, _ = seen.cohort
    away = next(k for k in range(4) if k not in seen.cohort)
    after = replace(seen.after, cluster_of={"mine": {one: 10, away: 11}})
    assert clusters(replace(seen, after=after)) == {"mine": {str(one): 10}}


def test_the_bandit_round_by_round() -> None:
    """Arms as drawn; a reward and a lesson only in rounds that end in a global aggregation."""
    experiment, values = capt(seed=4), [dict.fromkeys(("1", "2", "3", "5", "7", "10"), 0.0)]
    for number in range(1, 7):
        seen = seen_round(experiment, number)
        found = bandit(seen)
        (arm,) = found["arms"]
        t = number - 1
        assert found["aggregated"] == (t % arm == 0 or number == 6) == (not seen.after.cluster_of)
        assert (found["reward"] is None) == (not found["aggregated"])
        expected = dict(values[-1])
        if found["aggregated"]:
            old = expected[str(arm)]
            expected[str(arm)] = old + 0.1 * 0.95**t * (found["reward"] - old)  # Eq. 7
        assert found["values"] == pytest.approx(expected)
        values.append(found["values"])
    assert sum(found["pulls"].values()) == sum(a != b for a, b in pairwise(values))
    assert any(a == b for a, b in pairwise(values))  # a round without aggregation was among them


@pytest.mark.parametrize("arms", [[1, 2], [1, 2, 3, 4, 5, 6]])
def test_the_bandit_has_the_arms_that_were_set(arms: list[int]) -> None:
    """Fewer than by default, or as many others."""
    for number in (1, 2):
        found = bandit(seen_round(capt(**{"method.arms": arms}), number))
        assert list(found["values"]) == list(found["pulls"]) == [str(arm) for arm in arms]
        assert set(found["arms"]) <= set(arms)
        assert sum(found["pulls"].values()) > 0
