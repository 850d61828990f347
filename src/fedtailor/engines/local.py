"""The meaning of `each`: a loop over the cohort, in this process."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..core import Params, Pass, Reply, Samples, Server
from ..visit import Client, Job, Task, reply_bytes, visit


@dataclass(frozen=True)
class Visited:
    """What one visit cost."""

    round: int
    client: int
    pass_: str
    samples: int
    weight: float
    bytes_down: int
    bytes_up: int
    seconds: float


@dataclass(frozen=True)
class Traffic:
    """One visit as a diagnostic sees it: what went down and came up, and the client before and after."""

    client: int
    task: Task
    reply: Reply
    before: Client
    after: Client


class LocalEngine:
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
        reply, self.clients[k] = visit(self.job, k, task, before, self.data[k])
        took = round(time.perf_counter() - began, 4)
        up, down, samples = reply_bytes(reply), task.bytes, len(self.data[k])
        self.visits.append(Visited(task.round, k, task.pass_, samples, reply.weight, down, up, took))
        if self.traffic is not None:
            self.traffic.append(Traffic(k, task, reply, before, self.clients[k]))
        return reply
