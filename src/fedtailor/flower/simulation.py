"""engine=flower: Flower's simulation. Clients are nodes that Ray runs in other processes, reached by letters alone."""

from __future__ import annotations

import json
import logging
import queue
import tempfile
import threading
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import flwr.simulation
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from ..base.errors import UserError
from ..client.job import ClientState
from ..methods.recipe import flat
from ..remote.client import RemoteClient
from ..remote.engine import Received, RemoteEngine
from ..remote.run import remote_engine, run_id, simulated_session
from ..settings.run import Run, make_run
from ..simulation.build import Experiment, build
from . import need
from .messages import GridTransport, client_app

START = 300.0  # seconds that Ray may take to start


def make_engine(experiment: Experiment, clients: Mapping[int, ClientState] | None, folder: Path | None) -> RemoteEngine:
    """The engine of a run; clients keep their states in its folder, or in one that is gone with the run."""
    need("ray")
    return remote_engine(experiment, clients, Simulated(experiment.run, folder), run_id(folder))


@cache
def prepared(document: str) -> Experiment:
    return build(make_run(settings=flat(json.loads(document))))


class Answering:
    """What a node does with a letter, in whichever process Ray has put it."""

    def __init__(self, document: str, folder: Path) -> None:
        self.document, self.folder = document, folder

    def __call__(self, kind: str, data: bytes, context: Context) -> bytes:
        who = int(context.node_config["partition-id"])
        if kind == "query.who":
            return str(who).encode()
        return site(self.document, self.folder, who).answer(data)


@cache
def site(document: str, folder: Path, who: int) -> RemoteClient:
    return RemoteClient(folder / f"client-{who}", lambda charter: simulated_session(prepared(document), charter.client))


class Simulated:
    """Flower's simulation in a thread of its own, whose ServerApp does nothing but lend us its Grid."""

    def __init__(self, run: Run, folder: Path | None) -> None:
        self.away = None if folder else tempfile.TemporaryDirectory(prefix="fedtailor-")
        home = (folder or Path(self.away.name if self.away else "")) / "clients"
        self.over, self.lent = threading.Event(), queue.Queue[Grid | BaseException]()
        logging.getLogger("flwr").setLevel(logging.ERROR)  # its log is not the user's
        answering = Answering(json.dumps(run.document()), home.absolute())
        self.thread = threading.Thread(target=self.simulate, args=(run, answering), daemon=True)
        self.thread.start()
        try:
            found = self.lent.get(timeout=START)
        except queue.Empty:
            raise UserError(f"Flower's simulation did not start within {START:.0f} s") from None
        if isinstance(found, BaseException):
            raise UserError(f"Flower's simulation did not start: {found}") from found
        self.post = GridTransport(found)

    def simulate(self, run: Run, answering: Answering) -> None:
        server = ServerApp()

        @server.main()
        def main(grid: Grid, context: Context) -> None:
            self.lent.put(grid)
            self.over.wait()

        resources: dict[str, Any] = {"num_cpus": run.threads, "num_gpus": 0.0}
        # Ray's dashboard and its listening on all of the machine's addresses are nobody's wish here.
        start: dict[str, Any] = {
            "include_dashboard": False,
            "log_to_driver": False,
            "logging_level": "error",
            "_node_ip_address": "127.0.0.1",
        }
        try:
            flwr.simulation.run_simulation(
                server,
                client_app(answering),
                run.clients,
                backend_config={"client_resources": resources, "init_args": start},
            )
        except BaseException as error:
            self.lent.put(error)
            raise

    def here(self) -> Any:
        return self.post.here()

    def send(self, kind: str, round_: int, letters: Mapping[int, bytes]) -> None:
        self.post.send(kind, round_, letters)

    def fetch(self) -> list[Received]:
        if not self.thread.is_alive():
            raise UserError("Flower's simulation has ended by itself; its log says why")
        return list(self.post.fetch())

    def close(self) -> None:
        self.over.set()
        self.thread.join(timeout=60)
        if self.away:
            self.away.cleanup()
