"""The meaning of `each`: a loop over the cohort, in this process."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from ..core import Params, Pass, Reply, Samples, Server
from ..diagnostics.labels import Quality, pseudo_labels
from ..evaluate import score_clients, score_shared
from ..metrics import Score
from ..visit import Client, Job, Task, opened, reply_bytes, visit
from .base import Traffic, Visited

if TYPE_CHECKING:
    from ..setup import Setup


class LocalEngine:
    oversample = 0.0  # nobody here is ever late

    def __init__(self, job: Job, data: Mapping[int, Samples], clients: Mapping[int, Client] | None = None) -> None:
        self.job, self.data = job, data
        self.clients = {k: Client() for k in data} | dict(clients or {})
        self.visits: list[Visited] = []  # since whoever reads it last cleared it
        self.traffic: list[Traffic] | None = None  # the same in full, where someone wants it

    def __call__(
        self, pass_: Pass, server: Server, cohort: Sequence[int], inbox: Mapping[int, Params] | None = None
    ) -> dict[int, Reply]:
        mail = inbox or {}
        tasks = {
            k: Task(self.job.address(pass_), server.round, server.params_for(k, self.job.scopes), mail.get(k, {}))
            for k in sorted(cohort)
        }
        return self.run(tasks)

    def run(self, tasks: dict[int, Task]) -> dict[int, Reply]:
        return {k: self.call(k, task) for k, task in tasks.items()}

    def call(self, k: int, task: Task) -> Reply:
        began, before = time.perf_counter(), self.clients[k]
        packed, self.clients[k] = visit(self.job, k, task, before, self.data[k])
        took = round(time.perf_counter() - began, 4)
        reply, up, down, samples = opened(self.job, task, packed), reply_bytes(packed), task.bytes, len(self.data[k])
        self.visits.append(Visited(task.round, k, task.pass_, samples, reply.weight, down, up, took))
        if self.traffic is not None:
            self.traffic.append(Traffic(k, task, reply, before, self.clients[k]))
        return reply

    def open(self) -> None:
        pass

    def begin(self, invited: Collection[int], wanted: int) -> None:
        pass

    def saved(self) -> None:
        pass

    def examine(self, setup: Setup, server: Server) -> list[Score]:
        return score_clients(setup.job, server, self.clients, setup.tests)

    def shared(self, setup: Setup, server: Server) -> Score:
        return score_shared(setup.job, server, setup.tests)

    def untuned(self) -> Score | None:
        return None

    def pseudo(self, setup: Setup) -> Quality | None:
        return pseudo_labels(setup, self.clients)

    def close(self) -> None:
        pass
