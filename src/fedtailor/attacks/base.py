"""An attack: what the bad clients of a simulated federation do otherwise than the others. They keep to the protocol,
and say nothing that its checks would refuse."""

from collections.abc import Sequence

import torch
from pydantic import Field

from ..base.rng import generator
from ..core.types import Options, Params, Reply
from ..data.dataset import Images, Indices, Split


class Attack(Options):
    share: float = Field(0.2, ge=0, le=1, description="of the clients that are bad; drawn from the seed")

    def bad(self, clients: int, seed: int) -> frozenset[int]:
        """Who attacks."""
        drawn = torch.randperm(clients, generator=generator(seed, "attack"))
        return frozenset(drawn[: round(self.share * clients)].tolist())

    def poisoned(self, train: Split, bad: Sequence[Indices], classes: int) -> Split:
        """The training pictures as clients have them; `bad`: which of them each bad client holds."""
        return train

    def triggered(self, tests: Images) -> Images | None:
        """Test pictures that show whether a hidden aim was reached; None: it has none."""
        return None

    def forged(self, reply: Reply, start: Params) -> Reply:
        """What a bad client says in place of its reply; `start`: what it was sent."""
        return reply
