"""Remote clients in one process: a transport in memory, a clock that only waiting moves on, and faults."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any

from fedtailor.client.codec import client_to_bytes
from fedtailor.client.job import ClientState, Task
from fedtailor.core.types import OWN, Pass, Server
from fedtailor.remote.client import RemoteClient, Session, StateFiles, simulated_session
from fedtailor.remote.engine import Received, RemoteEngine
from fedtailor.remote.messages import AnyPassRequest, Invitation, Message, decode
from fedtailor.remote.policy import ANYTHING, SitePolicy
from fedtailor.runs.execute import train
from fedtailor.runs.folder import RunFolder
from fedtailor.runs.server_bytes import server_to_bytes
from fedtailor.settings.run import Run
from fedtailor.simulation.build import Experiment
from fedtailor.simulation.engine import StepLog
from fedtailor.simulation.local import LocalEngine
from fedtailor.simulation.loop import RoundRecord, run_round, run_round_with_retries

RUN = "0123456789abcdef" * 2
End = tuple[bytes, dict[int, bytes]]  # the server's bits and every client's


class Killed(BaseException):
    """A process is no more: nothing in it may catch this."""


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def wait(self, seconds: float) -> None:
        assert seconds > 0
        self.now += seconds


@dataclass(frozen=True)
class Sent:
    kind: str
    round: int
    client: int
    data: bytes

    @property
    def message(self) -> Message:
        return decode(self.data)[0]

    @property
    def pass_name(self) -> str:
        return self.message.pass_name if isinstance(self.message, AnyPassRequest) else ""


Coming = Iterable[tuple[float, Callable[[], Received]]]  # in so many seconds; made only then


@dataclass
class Fault:
    """What becomes of some messages instead of an answer."""

    does: Callable[[MemoryTransport, Sent], Coming]
    client: int | None = None
    round: int | None = None
    pass_name: str | None = None
    kind: str | None = "train.pass"
    times: int = 1 << 30

    def meets(self, sent: Sent) -> bool:
        wanted = (
            (self.client, sent.client),
            (self.round, sent.round),
            (self.pass_name, sent.pass_name),
            (self.kind, sent.kind),
        )
        return self.times > 0 and all(it is None or it == there for it, there in wanted)


class MemoryTransport:
    """Messages to real sites. Every answer takes `pace` seconds, and they come in another order each time."""

    def __init__(
        self, sites: Mapping[int, Callable[[], RemoteClient]], clock: Clock, faults: Iterable[Fault], seed: int
    ) -> None:
        self.fresh, self.clock, self.faults = sites, clock, [*faults]
        self.sites = {k: make() for k, make in sites.items()}
        self.order, self.pace = Random(seed), 1.0
        self.away: dict[int, float] = {}  # client → when it is back
        self.under_way: list[tuple[float, Callable[[], Received]]] = []
        self.sent: list[Sent] = []
        self.came: list[Received] = []
        self.watch: Callable[[str], None] = lambda event: None  # "sent" and "replied", once a message
        self.closed = 0

    def online(self) -> Collection[int]:
        return {k for k in self.sites if self.away.get(k, 0.0) <= self.clock.now}

    def send(self, kind: str, round_: int, data: Mapping[int, bytes]) -> None:
        for k, message in data.items():
            assert k in self.online(), "a message to a client that is not there"
            sent = Sent(kind, round_, k, message)
            self.sent.append(sent)
            fault = next((fault for fault in self.faults if fault.meets(sent)), None)
            if fault:
                fault.times -= 1
            coming = fault.does(self, sent) if fault else [(self.pace, lambda sent=sent: self.replied(sent))]
            self.under_way += [(self.clock.now + seconds, what) for seconds, what in coming]
            self.watch("sent")

    def replied(self, sent: Sent) -> Received:
        """What the client says. If it dies of it, a new one is soon in its place."""
        try:
            data = self.sites[sent.client].handle(sent.data)
        except Killed:
            self.restart(sent.client)
            return Received(sent.client, gone=True)
        self.watch("replied")
        return Received(sent.client, data)

    def restart(self, k: int) -> None:
        self.sites[k] = self.fresh[k]()

    def receive(self) -> list[Received]:
        due = [it for it in self.under_way if it[0] <= self.clock.now + 1e-9]
        self.under_way = [it for it in self.under_way if it not in due]
        self.order.shuffle(due)
        found = [what() for _, what in sorted(due, key=lambda it: it[0])]
        self.came += found
        return found

    def close(self) -> None:
        self.closed += 1


# --- faults -----------------------------------------------------------------------------------------------------------


def silent(transport: MemoryTransport, sent: Sent) -> Coming:
    """The message is lost."""
    return []


def unheard(transport: MemoryTransport, sent: Sent) -> Coming:
    """The client does its work, and the answer is lost."""
    transport.replied(sent)
    return []


def late(seconds: float) -> Callable[[MemoryTransport, Sent], Coming]:
    """The client does its work at once, and the answer takes long."""

    def does(transport: MemoryTransport, sent: Sent) -> Coming:
        arrival = transport.replied(sent)
        return [(seconds, lambda: arrival)]

    return does


def delayed(seconds: float) -> Callable[[MemoryTransport, Sent], Coming]:
    """The message takes long, and reaches the client behind newer ones."""
    return lambda transport, sent: [(seconds, lambda: transport.replied(sent))]


def leaves(seconds: float) -> Callable[[MemoryTransport, Sent], Coming]:
    """The client is gone, and after some time back."""

    def does(transport: MemoryTransport, sent: Sent) -> Coming:
        transport.away[sent.client] = transport.clock.now + seconds
        return [(0.0, lambda: Received(sent.client, gone=True))]

    return does


def twice(transport: MemoryTransport, sent: Sent) -> Coming:
    """The message reaches the client two times, and both answers come at once."""
    return [(transport.pace, lambda: transport.replied(sent))] * 2


def says(change: Callable[[bytes], bytes]) -> Callable[[MemoryTransport, Sent], Coming]:
    """The client does its work, and the answer is another."""
    return lambda transport, sent: [
        (transport.pace, lambda: replace(arrival := transport.replied(sent), data=change(arrival.data)))
    ]


# --- a federation -----------------------------------------------------------------------------------------------------


@dataclass
class RemoteWorld:
    """An experiment whose clients are remote; they keep their states under a folder."""

    experiment: Experiment
    folder: Path
    faults: list[Fault] = field(default_factory=list)
    seed: int = 0
    policy: SitePolicy = ANYTHING
    clock: Clock = field(default_factory=Clock)
    log: list[StepLog] = field(default_factory=list)

    def __post_init__(self) -> None:
        makers = {k: (lambda k=k: self.site(k)) for k in range(self.experiment.run.clients)}
        self.transport = MemoryTransport(makers, self.clock, self.faults, self.seed)

    def site(self, k: int) -> RemoteClient:
        def make_session(invitation: Invitation, run: Run) -> Session:
            return simulated_session(self.experiment, invitation.client)

        return RemoteClient(self.folder / f"client-{k}", make_session, self.policy, "here")

    def states(self, k: int) -> StateFiles:
        return StateFiles(self.folder / f"client-{k}" / RUN)

    def engine(self, clients: Mapping[int, ClientState] | None = None) -> RemoteEngine:
        self.made = RemoteEngine(self.experiment, clients, self.transport, RUN, clock=self.clock, wait=self.clock.wait)
        return self.made

    def rounds(self) -> Iterator[Server]:
        """Round by round, without a store."""
        engine, server = self.engine(), self.experiment.job.first_server()
        engine.open()
        while server.round < self.experiment.rounds:
            server, _, steps = run_round_with_retries(self.experiment, server, engine)
            self.log += steps
            engine.committed()
            yield server

    def end(self) -> End:
        *_, server = self.rounds()
        return self.bits(server)

    def train(self, store: RunFolder, resuming: bool = False) -> Iterator[RoundRecord]:
        return train(self.experiment, store, resuming, make=lambda experiment, clients, folder: self.engine(clients))

    def bits(self, server: Server, clients: Mapping[int, ClientState] | None = None) -> End:
        """Of a server, and of the states at the sites that count for it."""
        ledger = clients or self.made.clients
        held = {k: it if k == OWN else self.states(k).read(it.version, it.state_id) for k, it in ledger.items()}
        return server_to_bytes(server), {k: client_to_bytes(replace(held[k], state_id="")) for k in sorted(held)}

    def dropped(self) -> dict[tuple[int, int], str]:
        """(round, client): why."""
        return {(v.round, v.client): v.dropped for v in self.log if v.dropped}


class Without(LocalEngine):
    """Some clients are not in some rounds: (round, client)."""

    absent: Collection[tuple[int, int]] = ()

    def tasks(self, pass_: Pass, server: Server, *rest: Any) -> dict[int, Task]:
        tasks = super().tasks(pass_, server, *rest)
        return {k: task for k, task in tasks.items() if (task.round, k) not in self.absent}


def here(experiment: Experiment, *absent: tuple[int, int]) -> End:
    """Where all of it ends in one process."""
    return stayed(experiment, *absent)[0]


def stayed(experiment: Experiment, *absent: tuple[int, int]) -> tuple[End, list[StepLog]]:
    """The same, and what it cost."""
    engine, server = Without(experiment.job, experiment.client_data), experiment.job.first_server()
    engine.absent = absent
    while server.round < experiment.rounds:
        server, _ = run_round(experiment, server, engine)
    clients = {k: client_to_bytes(engine.clients[k]) for k in sorted(engine.clients)}
    return (server_to_bytes(server), clients), engine.log


def visited(visits: Iterable[StepLog]) -> list[StepLog]:
    """But for the time they took, in one order."""
    return sorted((replace(v, seconds=0.0) for v in visits), key=str)
