"""A privacy step: what is done to a client's reply before anything of it leaves."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from pydantic import BaseModel, ConfigDict

from ..core.types import Params, Reply


class PrivacyStep(BaseModel, ABC):
    model_config = ConfigDict(frozen=True, extra="forbid")

    @abstractmethod
    def __call__(self, reply: Reply, start: Params, rng: torch.Generator) -> Reply:
        """What leaves in place of a reply; `start` is what the server sent, so that an update can be bounded."""
