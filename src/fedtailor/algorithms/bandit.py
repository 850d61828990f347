"""How many rounds apart the server aggregates: the bandit of CAPT (Appendix A), which learns it from rewards.

Notation: a → arm, V → values, N → pulls, r → reward, η → eta, ε → epsilon where an arm is drawn, STABILITY in Eq. 8.
The reward, the decay of η and all constants are the released code's; the paper gives none.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import torch
from pydantic import Field

from ..base.errors import UserError
from ..base.rng import number
from ..core import Options, Params, Server

Arm = Annotated[int, Field(ge=1)]
ARMS = (1, 2, 3, 5, 7, 10)
STABILITY = 1e-5  # ε of Eq. 8


class BanditSettings(Options):
    """The bandit as a method's options. What it has learned is in the server's state."""

    arms: tuple[Arm, ...] = Field(ARMS, min_length=1, description="the bandit's: rounds between global aggregations")
    epsilon: float = Field(0.1, ge=0, le=1, title="ε", description="of draws that are blind, Eq. 8")
    bonus: float = Field(2**0.5, ge=0, title="c", description="of arms that were seldom drawn, Eq. 8")
    eta: float = Field(0.1, gt=0, le=1, title="η", description="the bandit's first learning rate, Eq. 7")
    decay: float = Field(0.95, gt=0, le=1, description="of η, a round")
    draws: int = Field(1, ge=1, description="arms drawn a round, of which the last counts; released: 4")
    holdout: float = Field(0.1, gt=0, le=0.5, description="of a client's samples, for the bandit's reward")

    def draw(self, server: Server) -> tuple[Server, list[int]]:
        """This round's arms."""
        rng, bandit = random.Random(number(server.seed, "bandit", server.round)), Bandit.of(self, server.state)
        arms = [bandit.draw(rng) for _ in range(self.draws)]
        return server.remember(arms=torch.tensor(arms)), arms

    def learn(self, server: Server, arms: Sequence[int], scored: tuple[float, float] | None) -> Server:
        """From the accuracy and macro-F1 of the aggregated model, in percent; nothing if none were measured."""
        if scored is None:
            return server
        past = server.state.get("history", torch.empty(0, dtype=torch.float64))
        bandit, earned = Bandit.of(self, server.state), reward(*scored, past.tolist())
        for arm in arms:
            bandit = bandit.update(arm, earned, server.round)
        history = torch.cat([past, past.new_tensor(scored[:1])])
        return server.remember(**bandit.to_params(), history=history, reward=past.new_tensor(earned))

    def describe(self, state: Params, aggregated: bool) -> dict[str, object]:
        """This round's arms, its reward if it ended in an aggregation, and what the bandit knows of each arm."""
        bandit, names = Bandit.of(self, state), [str(arm) for arm in self.arms]
        return {
            "arms": state["arms"].tolist(),
            "aggregated": aggregated,
            "reward": float(state["reward"]) if aggregated and "reward" in state else None,
            "values": dict(zip(names, bandit.values, strict=True)),
            "pulls": dict(zip(names, bandit.pulls, strict=True)),
        }


@dataclass(frozen=True)
class Bandit:
    rules: BanditSettings
    values: tuple[float, ...]
    pulls: tuple[int, ...]

    @classmethod
    def of(cls, rules: BanditSettings, state: Params) -> Bandit:
        """As far as a server's state says that it has learned."""
        none = torch.zeros(len(rules.arms), dtype=torch.int64)
        values, pulls = state.get("values", none.double()).tolist(), state.get("pulls", none).tolist()
        if not len(values) == len(pulls) == len(rules.arms):
            raise UserError(f"got {len(values)} values and {len(pulls)} pulls for the arms {rules.arms}")
        return cls(rules, tuple(values), tuple(pulls))

    def scores(self) -> tuple[float, ...]:
        log = math.log(sum(self.pulls) + 1)  # + 1, which Eq. 8 lacks: there is a first draw
        return tuple(
            v / (n + STABILITY) + self.rules.bonus * math.sqrt(log / (n + STABILITY))  # Eq. 8
            for v, n in zip(self.values, self.pulls, strict=True)
        )

    def draw(self, rng: random.Random) -> int:
        """The arm with the highest score, the first of several; or, with probability ε, any."""
        if rng.random() < self.rules.epsilon:
            return rng.choice(self.rules.arms)
        scores = self.scores()
        return self.rules.arms[scores.index(max(scores))]

    def update(self, arm: int, reward: float, t: int) -> Bandit:
        """After `arm` earned `reward` in round t."""
        values, pulls, a = list(self.values), list(self.pulls), self.rules.arms.index(arm)
        values[a] += self.rules.eta * self.rules.decay**t * (reward - values[a])  # Eq. 7
        pulls[a] += 1
        return replace(self, values=tuple(values), pulls=tuple(pulls))

    def to_params(self) -> Params:
        """What it has learned, for the server's state."""
        return {"values": torch.tensor(self.values, dtype=torch.float64), "pulls": torch.tensor(self.pulls)}


def reward(accuracy: float, f1: float, history: Sequence[float]) -> float:
    """Of an aggregated model, all in percent; `history` has the accuracies of those before it, the last one last."""
    gain = (accuracy - history[-4]) / 5 if len(history) >= 4 else 0.0  # over five evaluations, this one among them
    return 0.6 * accuracy + 0.3 * f1 + 0.1 * gain
