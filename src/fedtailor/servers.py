"""Server optimisers: the average of a round is a step that the server may take with momentum, for any method.

Hsu et al., Measuring the Effects of Non-Identical Data Distribution for Federated Visual Classification, 2019.
Reddi et al., Adaptive Federated Optimization, ICLR 2021.
Notation: Δ_t → what a round changed in the server's parameters, m_t, v_t → state "server.m.*", "server.v.*".
Departures: clusters' copies are the method's own affair; only the server's parameters take such a step.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from fnmatch import fnmatchcase

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from .core import Params, Server

AVERAGE = "average"  # the round's own result


class ServerStep(BaseModel, ABC):
    model_config = ConfigDict(frozen=True, extra="forbid")

    def __call__(self, before: Server, after: Server, made: Sequence[str] = ()) -> Server:
        """The server after a round, with this step in place of the plain one. `made`: not averages, left alone."""
        params, state = dict(after.params), dict(after.state)
        for name, value in after.params.items():
            change = value - before.params[name]
            if not any(fnmatchcase(name, pattern) for pattern in made) and change.count_nonzero():
                params[name] = value + self.beyond(change, name, state)
        return replace(after, params=params, state=state)

    @abstractmethod
    def beyond(self, change: Tensor, name: str, state: Params) -> Tensor:
        """How much further than the average to go; remembers what it must in `state`."""


class FedAvgM(ServerStep):
    """Rounds' changes gather momentum."""

    eta: float = Field(1.0, gt=0, allow_inf_nan=False, title="η", description="the server's learning rate")
    beta: float = Field(0.9, ge=0, lt=1, title="β", description="momentum")

    def beyond(self, change: Tensor, name: str, state: Params) -> Tensor:
        m = self.beta * state.get(f"server.m.{name}", torch.zeros_like(change)) + change  # v ← βv + Δw
        state[f"server.m.{name}"] = m
        return self.eta * m - change  # w ← w − ηv


class FedAdam(ServerStep):
    """Rounds' changes are steps of Adam."""

    eta: float = Field(0.01, gt=0, allow_inf_nan=False, title="η", description="the server's learning rate")
    beta1: float = Field(0.9, ge=0, lt=1, title="β₁")
    beta2: float = Field(0.99, ge=0, lt=1, title="β₂")
    tau: float = Field(1e-3, gt=0, allow_inf_nan=False, title="τ", description="added to √v: adaptivity ends below it")

    def beyond(self, change: Tensor, name: str, state: Params) -> Tensor:
        m, v = state.get(f"server.m.{name}", 0.0), state.get(f"server.v.{name}", self.tau**2)  # v_{−1} ≥ τ²
        m = self.beta1 * m + (1 - self.beta1) * change  # Alg. 2, l. 12
        v = self.beta2 * v + (1 - self.beta2) * change.square()  # Alg. 2, FedAdam
        state[f"server.m.{name}"], state[f"server.v.{name}"] = m, v
        return self.eta * m / (v.sqrt() + self.tau) - change  # Alg. 2, l. 14


SERVERS: dict[str, type[ServerStep]] = {"fedavgm": FedAvgM, "fedadam": FedAdam}
