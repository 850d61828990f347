"""FedAvgM: the changes of rounds gather momentum.

Hsu et al., Measuring the Effects of Non-Identical Data Distribution for Federated Visual Classification, 2019.
"""

import torch
from pydantic import Field
from torch import Tensor

from ..core import Params
from .base import ServerOptimizer


class FedAvgM(ServerOptimizer):
    eta: float = Field(1.0, gt=0, allow_inf_nan=False, title="η", description="the server's learning rate")
    beta: float = Field(0.9, ge=0, lt=1, title="β", description="momentum")

    def beyond(self, change: Tensor, name: str, state: Params) -> Tensor:
        m = self.beta * state.get(f"server.m.{name}", torch.zeros_like(change)) + change  # v ← βv + Δw
        state[f"server.m.{name}"] = m
        return self.eta * m - change  # w ← w − ηv
