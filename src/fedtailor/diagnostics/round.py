"""What a diagnostic sees: one round as the loop has it, with every client, every truth and all that travelled."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..core import Batch, Params, Server
from ..data.sets import Indices
from ..evaluate import on_device
from ..metrics import Score
from ..rng import generator
from ..visit import Client, Job, dressed, theta_of

if TYPE_CHECKING:
    from ..engines.base import Engine
    from ..setup import Setup

CHUNK = 256  # test pictures taken at once


@dataclass(frozen=True)
class Round:
    setup: Setup
    before: Server  # as the round began
    after: Server
    clients: Mapping[int, Client]  # as the round began
    engine: Engine  # the clients as they are now, and the round's traffic
    cohort: Sequence[int]
    shared: Score | None = None  # None in a round that is not tested
    personal: Score | None = None

    @property
    def job(self) -> Job:
        return self.setup.job

    def sent(self, k: int) -> Params:
        """The model a client began the round with: what the server had for it, and what it keeps for itself."""
        down = self.before.params_for(k, self.job.scopes)
        return on_device(self.job, theta_of(self.job, down, self.clients[k]))

    def batch(self, k: int, size: int, what: str) -> Batch | None:
        """At most so many of a client's training pictures, under the labels it trains on; None if it has none."""
        data = dressed(self.job, k, self.engine.clients[k], self.setup.shelves[k])
        rng = generator(self.job.seed, "diagnostics", what, self.before.round, k)
        return next(data.batches(size, False, rng), None)

    def tests(self, indices: Indices) -> Iterator[tuple[Tensor, Tensor]]:
        """Test pictures and their classes, some at a time."""
        for begin in range(0, len(indices), CHUNK):
            some = indices[begin : begin + CHUNK]
            y = torch.from_numpy(self.setup.tests.labels[some])
            yield self.setup.tests.pool.fetch(some), self.job.model.put(y)


def mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None


def percent(part: int, whole: int) -> float | None:
    return 100 * part / whole if whole else None
