"""How many rounds apart the server aggregates: the bandit of CAPT (Appendix A), which learns it from rewards.

Notation: a → arm, V → values, N → pulls, r → reward, η → eta, ε → epsilon where an arm is drawn, stability in Eq. 8.
The reward, the decay of η and all constants are the released code's; the paper gives none.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ..base.errors import UserError

ARMS = (1, 2, 3, 5, 7, 10)


@dataclass(frozen=True)
class Bandit:
    arms: tuple[int, ...] = ARMS
    values: tuple[float, ...] = ()  # empty: all 0, nothing was pulled yet
    pulls: tuple[int, ...] = ()
    epsilon: float = 0.1  # ε, how often an arm is drawn blindly
    c: float = math.sqrt(2)  # weight of the bonus for arms that were seldom pulled
    stability: float = 1e-5  # ε of Eq. 8
    eta: float = 0.1  # η_0
    decay: float = 0.95  # η_t = η_0 · decay^t

    def __post_init__(self) -> None:
        for name, zero in (("values", 0.0), ("pulls", 0)):
            given = getattr(self, name) or (zero,) * len(self.arms)
            if len(given) != len(self.arms):
                raise UserError(f"got {len(given)} {name} for the arms {self.arms}; give one for each, or none at all")
            object.__setattr__(self, name, given)

    def scores(self) -> tuple[float, ...]:
        log = math.log(sum(self.pulls) + 1)  # + 1, which Eq. 8 lacks: there is a first draw
        return tuple(
            v / (n + self.stability) + self.c * math.sqrt(log / (n + self.stability))  # Eq. 8
            for v, n in zip(self.values, self.pulls, strict=True)
        )

    def draw(self, rng: random.Random) -> int:
        """The arm with the highest score, the first of several; or, with probability ε, any."""
        if rng.random() < self.epsilon:
            return rng.choice(self.arms)
        scores = self.scores()
        return self.arms[scores.index(max(scores))]

    def update(self, arm: int, reward: float, t: int) -> Bandit:
        """After `arm` earned `reward` in round t."""
        a, eta = self.arms.index(arm), self.eta * self.decay**t
        values, pulls = list(self.values), list(self.pulls)
        values[a] += eta * (reward - values[a])  # Eq. 7
        pulls[a] += 1
        return replace(self, values=tuple(values), pulls=tuple(pulls))

    def to_params(self) -> dict[str, Tensor]:
        """What it has learned, for the server's state."""
        return {
            "values": torch.tensor(self.values, dtype=torch.float64),
            "pulls": torch.tensor(self.pulls, dtype=torch.int64),
        }

    @classmethod
    def from_params(cls, params: Mapping[str, Tensor], **settings: Any) -> Bandit:
        """A bandit that goes on from `to_params`; `settings` are the other fields, where they are not the defaults."""
        return cls(values=tuple(params["values"].tolist()), pulls=tuple(params["pulls"].tolist()), **settings)


def reward(accuracy: float, f1: float, history: Sequence[float]) -> float:
    """Of an aggregated model, all in percent; `history` has the accuracies of those before it, the last one last."""
    return 0.6 * accuracy + 0.3 * f1 + 0.1 * convergence(accuracy, history)


def convergence(accuracy: float, history: Sequence[float]) -> float:
    """The gain over the last five evaluations, this one among them; none before there are five."""
    return (accuracy - history[-4]) / 5 if len(history) >= 4 else 0.0
