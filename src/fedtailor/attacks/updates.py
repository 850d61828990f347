"""Attacks on what is sent: a bad client trains as all others do, and then sends something else."""

from dataclasses import replace

from pydantic import Field

from ..core.types import Params, Reply
from .base import Attack


class Scale(Attack):
    """a bad client sends its update many times as long"""

    times: float = Field(10.0, allow_inf_nan=False, description="what the update is multiplied by")

    def forged(self, reply: Reply, start: Params) -> Reply:
        """θ_k → start + times · (θ_k − start)"""
        return replace(reply, params={n: start[n] + self.times * (v - start[n]) for n, v in reply.params.items()})


class FlipSign(Scale):
    """a bad client sends its update turned round"""

    times: float = Field(-1.0, lt=0, allow_inf_nan=False, description="what the update is multiplied by")
