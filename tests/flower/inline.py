"""Flower's own ClientApp behind a Grid that is no more than a list of messages: no Ray, no sockets, one process."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from flwr.app import Context, Message, RecordDict, UserConfig
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid

from fedtailor.client.job import ClientState
from fedtailor.flower.messages import GridTransport, client_app
from fedtailor.flower.private.grid import Run
from fedtailor.flower.private.tasks import act_as, named
from fedtailor.remote.client import Order, RemoteClient, Session, simulated_session
from fedtailor.remote.engine import RemoteEngine, run_id
from fedtailor.remote.messages import Invitation
from fedtailor.remote.policy import ANYTHING
from fedtailor.simulation.build import Experiment


class InlineGrid(Grid):
    """Node ids have nothing to do with client numbers, and replies come in another order than messages went out."""

    def __init__(self, app: ClientApp, clients: int) -> None:
        act_as(1, 1, 1)
        self.app, self.count = app, 0
        self.run_config: UserConfig = {}
        self.nodes = {7000 + 13 * ((5 * k + 3) % 101): k for k in range(clients)}
        self.waiting: dict[str, Message] = {}
        self.carried: list[tuple[str, Message, Message]] = []  # kind, there, back

    def config(self, client: int) -> UserConfig:
        """Of a client's node."""
        return {"partition-id": client}

    def set_run(self, run: Run) -> None: ...

    @property
    def run(self) -> Run:
        raise NotImplementedError

    def create_message(self, *given: object, **more: object) -> Message:
        raise NotImplementedError

    def get_node_ids(self) -> Iterable[int]:
        return list(self.nodes)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        names = []
        for message in messages:
            self.count += 1
            names.append(name := f"message-{self.count}")
            self.waiting[name] = named(message, name)
        return names

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        names = [name for name in message_ids if name in self.waiting]
        return [self.carry(self.waiting.pop(name)) for name in reversed([*names[::2], *names[1::2]])]

    def carry(self, message: Message) -> Message:
        node = message.metadata.dst_node_id
        context = Context(1, node, self.config(self.nodes[node]), RecordDict(), self.run_config)
        back = self.app(message, context)
        self.carried.append((message.metadata.message_type, message, back))
        return back

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        return self.pull_messages(self.push_messages(messages))


def inline_app(experiment: Experiment, folder: Path) -> ClientApp:
    def make_session(invitation: Invitation, run: object) -> Session:
        return simulated_session(experiment, invitation.client)

    sites = {
        k: RemoteClient(folder / f"client-{k}", make_session, ANYTHING, "here") for k in range(experiment.run.clients)
    }

    def reply(kind: str, data: Order, context: Context) -> bytes:
        who = int(context.node_config["partition-id"])
        return str(who).encode() if kind == "query.who" else sites[who].handle(data)

    return client_app(reply)


def inline_engine(experiment: Experiment, folder: Path, clients: dict[int, ClientState] | None = None) -> RemoteEngine:
    grid = InlineGrid(inline_app(experiment, folder), experiment.run.clients)
    folder.mkdir(exist_ok=True)
    return RemoteEngine(experiment, clients, GridTransport(grid), run_id(folder))
