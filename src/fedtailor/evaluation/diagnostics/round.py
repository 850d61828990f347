"""What a diagnostic sees: one round, with every client's state, every true label and everything that was sent."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ...base.rng import generator
from ...client.data import ClientData
from ...client.job import ClientState, Job, theta_of
from ...client.step import StepTrace, labelled_data
from ...core.types import Batch, Params, Server
from ...data.dataset import Indices
from ...data.federation import Federation
from ..metrics import Score
from ..testing import EvalSet, on_device

CHUNK = 256  # test pictures at once


@dataclass(frozen=True)
class RoundView:
    job: Job
    federation: Federation
    tests: EvalSet
    data: Mapping[int, ClientData]
    before: Server  # when the round began
    after: Server
    clients_before: Mapping[int, ClientState]
    clients: Mapping[int, ClientState]  # after the round
    trace: Sequence[StepTrace]  # every client step of the round
    cohort: Sequence[int]
    shared: Score | None = None  # None in a round that is not tested
    personal: Score | None = None

    def sent(self, k: int) -> Params:
        """The model a client began the round with: what the server sent it, and what it keeps to itself."""
        down = self.before.params_for(k, self.job.scopes)
        return on_device(self.job, theta_of(self.job, down, self.clients_before[k]))

    def batch(self, k: int, size: int, what: str) -> Batch | None:
        """At most `size` of a client's training pictures, with the labels it trains on; None if it has none."""
        data = labelled_data(self.job, k, self.clients[k], self.data[k])
        rng = generator(self.job.seed, "diagnostics", what, self.before.round, k)
        return next(data.batches(size, False, rng), None)

    def test_batches(self, indices: Indices) -> Iterator[tuple[Tensor, Tensor]]:
        """Test pictures and their classes, a chunk at a time."""
        for begin in range(0, len(indices), CHUNK):
            some = indices[begin : begin + CHUNK]
            yield self.tests.features.fetch(some), self.job.model.put(torch.from_numpy(self.tests.labels[some]))
