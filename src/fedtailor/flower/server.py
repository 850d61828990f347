"""`fedtailor flower server`: the middle of a federation. A SuperLink carries letters; this process conducts the runs.

To Flower each attempt at a run is a new one; to us it is the same run, resumed from its last checkpoint, whatever ended
the attempt before: a SuperLink that broke, a process that was killed, a machine that was restarted.
"""

from __future__ import annotations

import hashlib
import logging
import secrets
import signal
import threading
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import httpx
from flwr.cli.build import build_fab_from_disk
from flwr.common.serde import fab_to_proto, run_from_proto, user_config_to_proto
from flwr.proto.control_pb2 import ListNodesRequest, RegisterNodeRequest, StartRunRequest, UnregisterNodeRequest
from flwr.proto.runtime_pb2 import PullTaskInputRequest
from flwr.serverapp import Grid
from flwr.supercore.constant import TaskType
from flwr.supercore.fab import Fab
from flwr.supercore.run import RunNotRunningException
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.grid import HttpGrid

from ..base.errors import UserError
from ..client.job import ClientState
from ..remote.run import remote_engine, run_id
from ..runs.execute import Callback, about, execute, threads
from ..runs.folder import RunFolder
from ..simulation.build import Experiment
from ..simulation.engine import Engine, MakeEngine
from ..simulation.loop import RoundRecord
from .deployment import Deployment, alone
from .messages import GridTransport
from .pki import write
from .process import ManagedProcess
from .sites import server_experiment
from .status import desk_of
from .worker import Runtime

log = logging.getLogger("fedtailor.flower")
UP = 120.0  # seconds that a SuperLink may take to start


class Stopped(Exception):  # noqa: N818  # as it reads
    """The run was taken out of the queue, or this process is to end."""


class Coordinator:
    def __init__(self, house: Deployment, listen: str, limit_mb: int) -> None:
        self.house, self.over = house, threading.Event()
        self.secret = secrets.token_hex(32).encode()
        write(house.flwr / "secret", self.secret, private=True)
        federation, folder = house.federation, house.folder
        words = [
            *(f"{listen}:{federation.port}", str(limit_mb * 1_000_000)),
            *("--host", "127.0.0.1", "--port", str(federation.control)),
            *("--ssl-certfile", str(folder / "server.pem"), "--ssl-keyfile", str(folder / "server.key")),
            *("--ssl-ca-certfile", str(folder / "ca.pem"), "--enable-supernode-auth"),
            *("--database", str(house.flwr / "state.db"), "--disable-runtime-dependency-installation"),
            *("--isolation", "process", "--superexec-auth-secret-file", str(house.flwr / "secret")),
        ]
        self.link = ManagedProcess("fedtailor.flower.superlink", lambda: words, folder / "log" / "link.log", house.flwr)
        self.desk = desk_of(house)
        self.runtime = Runtime(house.control, self.secret, house.certificate, TaskType.SERVER_APP)

    def serve(self) -> None:
        self.link.start()
        try:
            self.admit()
            log.info("ready: %d sites may come in at port %d", len(self.house.sites()), self.house.federation.port)
            while not self.over.is_set():
                waiting = self.house.waiting()
                if not waiting or not self.attempt(waiting[0]):
                    self.over.wait(1.0)
        finally:
            self.link.stop()

    def admit(self) -> None:
        """Let in the sites whose keys are here, and no others."""
        keys, ends = self.house.sites(), time.monotonic() + UP
        while True:
            try:
                there = {node.public_key: node for node in self.desk.ListNodes(ListNodesRequest()).nodes_info}
                break
            except httpx.TransportError as error:
                if time.monotonic() > ends or self.over.is_set():
                    raise UserError(f"{self.link.last_words()}: {error}") from error
                self.over.wait(0.2)
        known = {key for key, node in there.items() if node.status != "unregistered"}
        for name, key in keys.items():
            if key not in known:
                self.desk.RegisterNode(RegisterNodeRequest(public_key=key, name=name))
        for key in known - set(keys.values()):
            self.desk.UnregisterNode(UnregisterNodeRequest(node_id=there[key].node_id))

    def attempt(self, name: str) -> bool:
        """Carry a run of the queue out, as far as it goes. Whether it is done with."""
        try:
            self.conduct(name)
            self.house.done(name)
            log.info("%s: finished", name)
        except Stopped:
            log.info("%s: stopped", name)
        except (httpx.HTTPError, RunNotRunningException) as error:
            log.warning("%s: lost touch with Flower (%s); going on from the last checkpoint", name, error)
            return False
        except UserError as error:
            log.error("%s: %s", name, error)
            self.house.done(name, str(error))
        except Exception as error:
            log.exception("%s: failed", name)
            self.house.done(name, f"{type(error).__name__}: {error}")
        return True

    def conduct(self, name: str) -> None:
        run, members = self.house.asked(name)
        keys = self.house.sites()
        if gone := [site for site in members if site not in keys]:
            raise UserError(f"{', '.join(gone)} took part in this run and is no longer in the federation")
        numbers = {keys[site]: k for k, site in enumerate(members)}
        with threads(run.threads):
            began, experiment = time.perf_counter(), server_experiment(run)
            with self.started(name) as grid:
                post = GridTransport(grid, lambda node: numbers.get(node.public_key), run.plan.limit * 1e6)
                self.carry_out(name, experiment, self.engine_over(name, post), began)

    @contextmanager
    def started(self, name: str) -> Iterator[Grid]:
        """A run in Flower's eyes, whose ServerApp is this process."""
        with warnings.catch_warnings(action="ignore"):  # Flower's own, of no use to anyone here
            fab = build_fab_from_disk(self.house.root / "app")
        request = StartRunRequest(
            fab=fab_to_proto(Fab(hashlib.sha256(fab).hexdigest(), fab, {})),
            override_config=user_config_to_proto({"run": name}),
        )
        started = self.desk.StartRun(request).run_id
        taken = self.runtime.acquire()
        while taken is None or taken.run != started:
            if taken is not None:  # of an attempt that ended before its task was taken
                with self.runtime.task(taken.token):
                    log.info("an attempt that never began is ended")
            self.wait(name, 0.1)
            taken = self.runtime.acquire()
        with self.runtime.task(taken.token) as client:
            given = client.PullTaskInput(PullTaskInputRequest())
            TaskIdentity.task_id, TaskIdentity.run_id = given.task_id, given.run.run_id
            TaskIdentity.node_id = given.context.node_id
            grid = HttpGrid(self.house.control, False, self.house.certificate, token=taken.token)
            grid._client = client  # which tries again for a while, and never ends this process by a signal
            grid.set_run(run_from_proto(given.run))
            yield grid

    def wait(self, name: str, seconds: float) -> None:
        if self.over.wait(seconds) or not self.house.still(name):
            raise Stopped

    def engine_over(self, name: str, post: GridTransport) -> MakeEngine:
        def make(experiment: Experiment, clients: Mapping[int, ClientState] | None, folder: Path | None) -> Engine:
            return remote_engine(experiment, clients, post, run_id(folder), wait=partial(self.wait, name))

        return make

    def carry_out(self, name: str, experiment: Experiment, make: MakeEngine, began: float) -> None:
        folder, resuming = self.house.runs / name, False
        if (folder / "run.toml").is_file():
            store, resuming = RunFolder.reopen(folder)[0], True
        else:
            store = RunFolder.create(folder, experiment.run, about(experiment))
        execute(experiment, store, resuming, began, Telling(name), make)


class Telling(Callback):
    """A line for the log after every round."""

    def __init__(self, name: str) -> None:
        self.name = name

    def on_round(self, record: RoundRecord, rounds: int) -> None:
        tested = record.shared.overall if record.shared else None
        lost = f", without {', '.join(f'client {k} ({why})' for k, why in record.dropped.items())}"
        log.info(
            "%s: round %d of %d%s%s",
            self.name,
            record.round,
            rounds,
            "" if tested is None else f", accuracy {tested:.1f}%",
            lost if record.dropped else "",
        )


def run_server(house: Deployment, listen: str = "127.0.0.1", limit_mb: int = 300) -> None:
    """Serve until a signal ends it."""
    with alone(house.folder, "server"):
        conductor = Coordinator(house, listen, limit_mb)
        for name in (signal.SIGINT, signal.SIGTERM):
            signal.signal(name, lambda *_: conductor.over.set())
        conductor.serve()
