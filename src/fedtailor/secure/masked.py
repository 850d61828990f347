"""Masked: each reply is a sum with random numbers that cancel once all replies are added up.

Bonawitz et al., Practical Secure Aggregation for Privacy-Preserving Machine Learning, CCS 2017; with fewer neighbours
for each client: Bell et al., Secure Single-Server Aggregation with (Poly)Logarithmic Overhead, CCS 2020 (SecAgg+).
Departures: as in the former's simpler variant, clients do not sign and compare whom the server calls a survivor. What
takes its place is that more than half of a client's neighbours are needed to open a mask, each of whom opens one kind.
What the parties do is in remote/sums.py (the server) and remote/vault.py (a client), what they compute here in keys.py.
"""

import math
import random
from collections.abc import Collection

from pydantic import Field, field_validator

from ..core.types import Options

FEWEST = 3  # clients in a sum: of two, each knows the other's by taking its own away
SHARE = 2 / 3  # of those who hold shares of a secret: so many together can put it together again


class Masked(Options):
    """the server sees sums of replies, each under masks that cancel in the sum"""

    neighbours: int = Field(
        0, ge=0, description="clients with whom each shares masks, an even number; 0: with all of its round"
    )

    @field_validator("neighbours")
    @classmethod
    def round_a_ring(cls, neighbours: int) -> int:
        if neighbours % 2 or 0 < neighbours < 4:
            raise ValueError("0, or an even number, 4 or more")
        return neighbours

    def least(self, holders: int) -> int:
        """How many of those who hold shares of a secret it takes: more than half, so that for two different sets of
        survivors there are never enough."""
        return max(math.ceil(SHARE * holders - 1e-9), holders // 2 + 1)

    def graph(self, clients: Collection[int], draw: random.Random) -> dict[int, list[int]]:
        """Each client's neighbours: those next to it in a circle of random order."""
        order, reach = sorted(clients), self.neighbours // 2
        if not self.neighbours or self.neighbours >= len(order):
            return {k: [other for other in order if other != k] for k in order}
        draw.shuffle(order)
        steps = [step for step in range(-reach, reach + 1) if step]
        return {k: sorted(order[(i + step) % len(order)] for step in steps) for i, k in enumerate(order)}
