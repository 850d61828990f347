"""A rebalancer: a hold on every task loss of a client, whatever the method, that reweights its gradient by class."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

import torch
from pydantic import BaseModel, ConfigDict
from torch import Tensor

if TYPE_CHECKING:
    from ..core import Batch, Params


class Balance(ABC):
    """Of one client, for one pass."""

    @abstractmethod
    def loss(self, logits: Tensor, batch: Batch) -> Tensor:
        """The task loss, whose gradient on the logits is reweighted."""

    @abstractmethod
    def keep(self) -> Params:
        """What the client keeps until its next pass; every name begins with "rebalance."."""


class Rebalancer(BaseModel, ABC):
    model_config = ConfigDict(frozen=True, extra="forbid")

    @abstractmethod
    def begin(self, memory: Params, counts: Tensor, rng: torch.Generator) -> Balance:
        """For a pass of a client that has so many samples of each class, (C,), and kept `memory`."""
