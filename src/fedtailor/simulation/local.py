"""The meaning of an engine: a loop over the cohort, in this process."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from ..client.job import ClientState, Job, Task
from ..client.step import StepTrace, client_step, decompressed, reply_bytes
from ..core.types import Params, Pass, Reply, Samples, Server
from ..evaluation.pseudo_labels import Quality, pseudo_label_quality
from ..evaluation.testing import score_clients, score_shared
from .build import Experiment
from .engine import Engine, Evaluation, StepLog


class LocalEngine(Engine):
    def __init__(self, job: Job, data: Mapping[int, Samples], clients: Mapping[int, ClientState] | None = None) -> None:
        super().__init__(job, {k: ClientState() for k in data} | dict(clients or {}))
        self.data = data

    def __call__(
        self, pass_: Pass, server: Server, cohort: Sequence[int], inbox: Mapping[int, Params] | None = None
    ) -> dict[int, Reply]:
        return {k: self.step(pass_, k, task) for k, task in self.tasks(pass_, server, cohort, inbox).items()}

    def step(self, pass_: Pass, k: int, task: Task) -> Reply:
        began, before = time.perf_counter(), self.clients[k]
        packed, self.clients[k] = client_step(self.job, k, pass_, task, before, self.data[k])
        took = round(time.perf_counter() - began, 4)
        reply, up, down, samples = (
            decompressed(self.job, task, packed),
            reply_bytes(packed),
            task.bytes,
            len(self.data[k]),
        )
        self.log.append(StepLog(task.round, k, task.pass_name, samples, reply.weight, down, up, took))
        if self.trace is not None:
            self.trace.append(StepTrace(k, task, reply, before, self.clients[k]))
        return reply

    def evaluate(self, experiment: Experiment, server: Server) -> Evaluation:
        clients = score_clients(self.job, server, self.clients, experiment.tests)
        return Evaluation(score_shared(self.job, server, experiment.tests), clients)

    def pseudo_labels(self, experiment: Experiment) -> Quality | None:
        return None if self.job.labeler is None else pseudo_label_quality(experiment.federation, self.clients)


def make_engine(experiment: Experiment, clients: Mapping[int, ClientState] | None, folder: Path | None) -> LocalEngine:
    return LocalEngine(experiment.job, experiment.client_data, clients)
