"""engine=flower: Flower's simulation. Clients are nodes that Ray runs in other processes, reached by messages alone."""

import json
import logging
import queue
import tempfile
import threading
from collections.abc import Mapping
from contextlib import ExitStack
from functools import cache, partial
from importlib import import_module
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation

from ..base.errors import UserError
from ..base.keys import flat
from ..client.job import ClientState
from ..remote.client import Order, RemoteClient, simulated_session
from ..remote.engine import Received, RemoteEngine, run_id
from ..remote.policy import ANYTHING
from ..settings.run import Run, make_run
from ..simulation.build import Experiment, build
from . import need
from .messages import GridTransport, client_app

START = 300.0  # seconds that Ray may take to start


def make_engine(experiment: Experiment, clients: Mapping[int, ClientState] | None, folder: Path | None) -> RemoteEngine:
    """The engine of a run; clients keep their states in its folder, or in one that is gone with the run."""
    need("ray")
    check_loopback()
    return RemoteEngine(experiment, clients, SimulatedTransport(experiment.run, folder), run_id(folder))


@cache
def built(document: str) -> Experiment:
    return build(make_run(settings=flat(json.loads(document))))


@cache
def client(document: str, folder: Path, who: int) -> RemoteClient:
    at = folder / f"client-{who}"
    return RemoteClient(at, lambda invited, _: simulated_session(built(document), invited.client), ANYTHING, "here")


def reply(document: str, folder: Path, kind: str, data: Order, context: Context) -> bytes:
    """What a node does with a message, in whichever process Ray has put it."""
    who = int(context.node_config["partition-id"])
    return str(who).encode() if kind == "query.who" else client(document, folder, who).handle(data)


def check_loopback() -> None:
    """Ray reads its environment when it is imported, so one that is older than ours may listen anywhere."""
    address = import_module("ray.util").get_node_ip_address()  # without its types, which are not everywhere
    if not ip_address(address).is_loopback:
        raise UserError(
            f"Ray listens on {address}, where others could reach it, since something had imported or started it before "
            "fedtailor; import fedtailor.flower first"
        )


class SimulatedTransport(GridTransport):
    """Flower's simulation in a thread of its own, whose ServerApp does nothing but lend us its Grid."""

    def __init__(self, run: Run, folder: Path | None) -> None:
        self.rest = ExitStack()
        home = folder or Path(self.rest.enter_context(tempfile.TemporaryDirectory(prefix="fedtailor-")))
        self.over, self.lent = threading.Event(), queue.Queue[Grid | BaseException]()
        logging.getLogger("flwr").setLevel(logging.ERROR)  # its log is of no use to the user
        app = client_app(partial(reply, json.dumps(run.document()), home.absolute() / "clients"))
        self.thread = threading.Thread(target=self.simulate, args=(run, app), daemon=True)
        self.thread.start()
        try:
            found = self.lent.get(timeout=START)
        except queue.Empty:
            raise UserError(f"Flower's simulation did not start within {START:.0f} s") from None
        if isinstance(found, BaseException):
            raise UserError(f"Flower's simulation did not start: {found}") from found
        super().__init__(found)

    def simulate(self, run: Run, app: ClientApp) -> None:
        server = ServerApp()

        @server.main()
        def main(grid: Grid, context: Context) -> None:
            self.lent.put(grid)
            self.over.wait()

        resources = {"num_cpus": run.threads, "num_gpus": 0.0}
        quiet = {"include_dashboard": False, "log_to_driver": False, "logging_level": "error"}
        start = {**quiet, "_node_ip_address": "127.0.0.1"}  # listening on this machine only
        backend: dict[str, Any] = {"client_resources": resources, "init_args": start}
        try:
            run_simulation(server, app, run.clients, backend_config=backend)
        except BaseException as error:
            self.lent.put(error)
            raise

    def receive(self) -> list[Received]:
        if not self.thread.is_alive():
            raise UserError("Flower's simulation has ended by itself; its log says why")
        return list(super().receive())

    def close(self) -> None:
        self.over.set()
        self.thread.join(timeout=60)
        self.rest.close()
