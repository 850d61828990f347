"""The bandit that says when to aggregate: its equations by hand, and 60 rounds of CAPT's own scheduler."""

from __future__ import annotations

import json
import math
import random
from collections import Counter
from typing import Any

import pytest
import torch

from fedtailor.algorithms import bandit as module
from fedtailor.algorithms.bandit import ARMS, Bandit, BanditSettings, reward
from fedtailor.base.errors import UserError
from golden_numbers import GOLDEN

KNOWN = json.loads((GOLDEN / "capt_mab.json").read_text())


def by_arm(numbers: dict[str, float]) -> tuple[float, ...]:
    return tuple(numbers[str(arm)] for arm in ARMS)


def new(**rules: Any) -> Bandit:
    return Bandit.of(BanditSettings(**rules), {})


def learned(values: tuple[float, ...], pulls: tuple[int, ...], **rules: Any) -> Bandit:
    return Bandit(BanditSettings(**rules), values, pulls)


def test_nothing_pulled_yet() -> None:
    bandit = new()
    assert (bandit.rules.arms, bandit.values, bandit.pulls) == (ARMS, (0.0,) * 6, (0,) * 6)
    assert bandit.scores() == (0.0,) * 6


def test_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eq. 8: V = (4, 1), N = (3, 1), c = 2, ε = 1, so that ln(4 + 1) / (N + 1) is ln 5 / 4 and ln 5 / 2.

    np.array([4, 1]) / [4, 2] + 2 * np.sqrt(np.log(5) / [4, 2]) = [2.26863624, 2.29412252]
    """
    monkeypatch.setattr(module, "STABILITY", 1.0)
    bandit = learned((4.0, 1.0), (3, 1), arms=(1, 2), bonus=2.0)
    assert bandit.scores() == pytest.approx((2.26863624, 2.29412252))
    assert bandit.scores() == pytest.approx((1 + math.sqrt(math.log(5)), 0.5 + math.sqrt(2 * math.log(5))))


def test_update() -> None:
    """Eq. 7 in round 2: η = 0.1 · 0.95² = 0.09025, V = 10 + 0.09025 · (50 - 10) = 13.61. The old one is unchanged."""
    before = learned((7.0, 10.0), (1, 3), arms=(1, 5))
    after = before.update(5, reward=50.0, t=2)
    assert after.values == pytest.approx((7.0, 13.61))
    assert after.pulls == (1, 4)
    assert before == learned((7.0, 10.0), (1, 3), arms=(1, 5))
    slower = learned((7.0, 10.0), (1, 3), arms=(1, 5), eta=0.5, decay=0.1)
    assert slower.update(5, 50.0, 1).values[1] == pytest.approx(12.0)


def test_draws() -> None:
    """Never blindly: the first of the highest. Always blindly: each arm about as often as any."""
    bandit = learned((1.0, 2.0, 2.0), (1, 1, 1), arms=(1, 2, 3), epsilon=0.0)
    assert {bandit.draw(random.Random(i)) for i in range(20)} == {2}
    blind, rng = learned((1.0, 2.0, 2.0), (1, 1, 1), arms=(1, 2, 3), epsilon=1.0), random.Random(0)
    drawn = Counter(blind.draw(rng) for _ in range(600))
    assert set(drawn) == {1, 2, 3}
    assert min(drawn.values()) > 150


def test_reward() -> None:
    """0.6 · 60 + 0.3 · 50 = 51, and 0.1 · (60 - 40) / 5 = 0.4 more, as 40 was the accuracy four evaluations before."""
    assert reward(60, 50, [40, 50, 55, 58]) == pytest.approx(51.4)
    assert reward(60, 50, [10, 40, 50, 55, 58]) == pytest.approx(51.4)
    assert reward(60, 50, [50, 55, 58]) == pytest.approx(51.0)
    assert reward(60, 50, []) == pytest.approx(51.0)


def test_to_params_and_back() -> None:
    """Not a bit is lost, and the settings stay with who made it."""
    bandit = new(arms=(2, 4), epsilon=0.3).update(4, 1 / 3, t=1)
    params = bandit.to_params()
    assert {name: value.dtype for name, value in params.items()} == {"values": torch.float64, "pulls": torch.int64}
    assert Bandit.of(BanditSettings(arms=(2, 4), epsilon=0.3), params) == bandit
    assert Bandit.of(BanditSettings(), new().to_params()) == new()


def test_params_of_other_arms() -> None:
    with pytest.raises(UserError, match=r"got 2 values and 2 pulls for the arms \(1, 2, 3, 5, 7, 10\)"):
        Bandit.of(BanditSettings(), new(arms=(2, 4)).to_params())
    with pytest.raises(UserError, match="got 2 values and 1 pulls"):
        Bandit.of(BanditSettings(arms=(2, 4)), {"values": torch.ones(2), "pulls": torch.ones(1)})


def test_golden_rounds() -> None:
    """Draw by draw: four a round, of which the last says whether to aggregate; each is then updated in turn."""
    assert tuple(KNOWN["arms"]) == ARMS
    params, rng, history = new().to_params(), random.Random(123), []
    for known in KNOWN["rounds"]:
        t, accuracy, bandit = known["epoch"], known["accuracy"], Bandit.of(BanditSettings(), params)
        drawn = [bandit.draw(rng) for _ in range(4)]
        assert drawn == known["drawn"], t
        assert (t % drawn[3] == 0) == known["updated"]
        if known["updated"]:
            earned = reward(accuracy, known["f1"], history)
            assert earned == pytest.approx(known["reward"], rel=1e-12)
            history.append(accuracy)
            for arm in drawn:
                bandit = bandit.update(arm, earned, t)
        assert bandit.values == pytest.approx(by_arm(known["values"]), rel=1e-12)
        assert bandit.pulls == by_arm(known["counts"])
        params = bandit.to_params()
    assert len(history) == 23  # of 60 rounds


def test_golden_greedy() -> None:
    known = KNOWN["greedy_case"]
    pulls = tuple(int(n) for n in by_arm(known["counts"]))
    bandit = learned(by_arm(known["values"]), pulls, epsilon=0.0)
    assert bandit.scores() == pytest.approx(by_arm(known["index"]), rel=1e-12)
    assert bandit.draw(random.Random(0)) == known["selected"]
