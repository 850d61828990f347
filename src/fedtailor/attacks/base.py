"""An attack: what the bad clients of a simulated federation do otherwise than the others. They keep to the protocol,
and say nothing that its checks would refuse."""

import torch
from pydantic import Field

from ..base.rng import generator
from ..core.types import Options, Params, Reply, Samples


class Attack(Options):
    share: float = Field(0.2, ge=0, le=1, description="of the clients that are bad; drawn from the seed")

    def bad(self, clients: int, seed: int) -> frozenset[int]:
        """Who attacks."""
        drawn = torch.randperm(clients, generator=generator(seed, "attack"))
        return frozenset(drawn[: round(self.share * clients)].tolist())

    def poisoned(self, data: Samples, classes: int) -> Samples:
        """What a bad client trains on."""
        return data

    def forged(self, reply: Reply, start: Params) -> Reply:
        """What a bad client says in place of its reply; `start`: what it was sent."""
        return reply
