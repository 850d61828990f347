"""An engine for tests: everything that a client sends or receives passes as bytes, and in another order.

What only works because two parties share memory, or because clients are served in a certain order, fails here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from fedtailor.client.codec import client_from_bytes, client_to_bytes, from_bytes, to_bytes
from fedtailor.client.job import ClientState, Task
from fedtailor.core.types import Params, Pass, Reply, Server
from fedtailor.settings.engines import ENGINES, EngineEntry
from fedtailor.simulation.build import Experiment
from fedtailor.simulation.local import LocalEngine

ENGINES.setdefault("posted", EngineEntry("posted", "for tests: by bytes, in another order"))


def task_to_bytes(task: Task) -> bytes:
    return to_bytes({"params": task.params, "inbox": task.inbox}, {"pass": task.pass_name, "round": task.round})


def task_from_bytes(data: bytes) -> Task:
    groups, note = from_bytes(data, ("params", "inbox"), ("pass", "round"))
    return Task(note["pass"], note["round"], groups["params"], groups["inbox"])


def reply_to_bytes(reply: Reply) -> bytes:
    """Only what leaves a client: `keep` has been taken out by then, and would be lost here."""
    return to_bytes({"params": reply.params, "stats": reply.stats}, {"weight": reply.weight})


def reply_from_bytes(data: bytes) -> Reply:
    groups, note = from_bytes(data, ("params", "stats"), ("weight",))
    return Reply(groups["params"], note["weight"], groups["stats"])


class PostedEngine(LocalEngine):
    def __call__(
        self, pass_: Pass, server: Server, cohort: Sequence[int], inbox: Mapping[int, Params] | None = None
    ) -> dict[int, Reply]:
        requests = {k: task_to_bytes(task) for k, task in self.tasks(pass_, server, cohort, inbox).items()}
        answers: dict[int, bytes] = {}
        for k in reversed(requests):
            self.clients[k] = client_from_bytes(client_to_bytes(self.clients[k]))
            task = task_from_bytes(requests[k])
            answers[k] = reply_to_bytes(self.step(self.job.find_pass(task.pass_name), k, task))
        # An odd-even order: neither that of the cohort nor its reverse.
        arrived = [*list(answers)[::2], *list(answers)[1::2]]
        return {k: reply_from_bytes(answers[k]) for k in arrived}


def make_engine(experiment: Experiment, clients: Mapping[int, ClientState] | None, folder: Path | None) -> PostedEngine:
    return PostedEngine(experiment.job, experiment.client_data, clients)
