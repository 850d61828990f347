"""The meaning of an engine: every client of the cohort, in this process, as if one after the other."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from ..base.workers import side_by_side
from ..client.job import ClientState, Job, Task
from ..client.step import StepTrace, client_step, decompressed, reply_bytes
from ..core.types import OWN, Params, Pass, Reply, Samples, Server
from ..evaluation.pseudo_labels import Quality, pseudo_label_quality
from ..evaluation.testing import Said, ask_clients, ask_shared, mean_local
from .build import Experiment
from .engine import Engine, Evaluation, StepLog

PAYS = 0.01  # seconds: shorter steps are done one after the other, since threads would wait for Python's lock


class LocalEngine(Engine):
    def __init__(
        self,
        job: Job,
        data: Mapping[int, Samples],
        clients: Mapping[int, ClientState] | None = None,
        threads: int = 1,  # clients at a time
        folder: Path | None = None,  # of their states
    ) -> None:
        super().__init__(job, clients)
        self.data, self.threads, self.secret = data, threads, job.privacy.secret(folder) if job.privacy else b""
        self.seconds: dict[str, float] = {}  # what the last step of a pass took

    def __call__(
        self, pass_: Pass, server: Server, cohort: Sequence[int], inbox: Mapping[int, Params] | None = None
    ) -> dict[int, Reply]:
        tasks, logged, traced = self.tasks(pass_, server, cohort, inbox), len(self.log), len(self.trace or ())
        # Those with most to do begin first, so that none is left alone at the end.
        order = sorted(tasks, key=lambda k: -len(self.data[k]))
        pays = self.seconds.get(self.job.pass_name(pass_), math.inf) > PAYS
        replies = self.carry_out([partial(self.step, pass_, k, tasks[k]) for k in order], pays)
        self.log[logged:] = sorted(self.log[logged:], key=lambda step: step.client)
        if self.trace is not None:
            self.trace[traced:] = sorted(self.trace[traced:], key=lambda step: step.client)
        return dict(sorted(zip(order, replies, strict=True)))

    def carry_out(self, work: Sequence[Callable[[], Reply]], at_once: bool) -> list[Reply]:
        return side_by_side(work, self.threads, at_once)

    def step(self, pass_: Pass, k: int, task: Task) -> Reply:
        began, before = time.perf_counter(), self.clients[k]
        packed, self.clients[k] = client_step(self.job, k, pass_, task, before, self.data[k], self.secret)
        took, reply = round(time.perf_counter() - began, 4), decompressed(self.job, task, packed)
        self.seconds[task.pass_name], sizes = took, (task.bytes, reply_bytes(packed))
        self.log.append(StepLog(task.round, k, task.pass_name, len(self.data[k]), reply.weight, *sizes, took))
        if self.trace is not None:
            self.trace.append(StepTrace(k, task, reply, before, self.clients[k]))
        return reply

    def pictures(self) -> dict[int, int]:
        return {k: len(data) for k, data in self.data.items() if k != OWN}

    def evaluate(self, experiment: Experiment, server: Server) -> Evaluation:
        workers = partial(side_by_side, threads=self.threads)
        own = ask_clients(self.job, server, self.clients, experiment.tests, workers)
        sizes = {k: len(data) for k, data in self.data.items()}
        lent = mean_local(self.clients, sizes) if self.job.method.lent else None
        said = Said(ask_shared(self.job, server, experiment.tests, workers, lent), own)
        return Evaluation(*experiment.tests.scores(said), said=said)

    def pseudo_labels(self, experiment: Experiment) -> Quality | None:
        return None if self.job.labeler is None else pseudo_label_quality(experiment.federation, self.clients)


def make_engine(experiment: Experiment, clients: Mapping[int, ClientState] | None, folder: Path | None) -> LocalEngine:
    return LocalEngine(experiment.job, experiment.client_data, clients, experiment.run.threads, folder)
