"""A rebalancer: a hold on every task loss of a client, whatever the method, that reweights its gradient by class."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from pydantic import BaseModel, ConfigDict
from torch import Tensor

from ..core import Balance, Params


class Rebalancer(BaseModel, ABC):
    model_config = ConfigDict(frozen=True, extra="forbid")

    @abstractmethod
    def begin(self, memory: Params, counts: Tensor, rng: torch.Generator) -> Balance:
        """For a pass of a client that has so many samples of each class, (C,), and kept `memory`."""
