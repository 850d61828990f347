"""Both ends of an app for Flower's own commands: `flwr run` on any SuperLink, its SuperNodes Flower's own or simulated.

The ServerApp conducts a run over the Grid that it is given, the ClientApp answers for a site. Flower starts a process
for each message, which loads torch and CLIP anew: what a site keeps is in its `home`. `fedtailor flower server` takes
its SuperLink's runs by itself and has no use for the ServerApp.
"""

import logging
import sys
import tomllib
from functools import cache
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from ..base.errors import UserError
from ..base.keys import flat
from ..remote.client import Order, RemoteClient, simulated_session
from ..remote.policy import ANYTHING
from ..settings.run import make_run
from ..simulation.build import Experiment, build
from .client import find_policy, open_site
from .deployment import PLAIN
from .messages import client_app

log = logging.getLogger("fedtailor.flower")
WHO = "query.who"
CONFIG = {"settings", "runs-dir", "run", "resume"}  # what an app is told (templates/app/pyproject.toml.template)


def reply(kind: str, data: Order, context: Context) -> bytes:
    """Flower tells the server of an exception in its own words, so that it gets none of ours."""
    if simulated():
        return simulated_answer(kind, data, context)
    tell()
    try:
        return answer(kind, data, context)
    except Exception as error:
        log.exception("no reply", exc_info=error)
        raise UserError("this site did not reply; its own log says why") from None


def answer(kind: str, data: Order, context: Context) -> bytes:
    config = context.node_config
    needed = {"home", "data"} | ({"partition-id"} if kind == WHO else set())
    if missing := needed - config.keys():
        raise UserError(f"start the SuperNode with {' and '.join(sorted(missing))} in its --node-config")
    home, pictures, backbone = (str(config.get(name, "")) for name in ("home", "data", "backbone"))
    site = open_site(Path(home), find_policy(Path(home)), pictures, backbone, server="the one of Flower's SuperNode")
    if kind != WHO:
        return site.handle(data)
    number = str(int(config["partition-id"])).encode()
    site.audit.add(order="who", what="client number", bytes=len(number))
    return number


def simulated() -> bool:
    """Whether this is a process of Flower's simulation: nowhere else is Ray. A SuperNode's config alone proves nothing,
    and a server must not choose what a site reads."""
    ray = sys.modules.get("ray")
    return ray is not None and ray.is_initialized()


def simulated_answer(kind: str, data: Order, context: Context) -> bytes:
    who = int(context.node_config["partition-id"])
    return str(who).encode() if kind == WHO else simulated_client(folder_of(context), who).handle(data)


@cache
def simulated_client(folder: Path, who: int) -> RemoteClient:
    """Its data is drawn as the run's settings say, and it keeps its states in the run's folder."""
    at = folder / "clients" / f"client-{who}"
    return RemoteClient(at, lambda asked, _: simulated_session(drawn(asked.settings), asked.client), ANYTHING, "here")


@cache
def drawn(settings: str) -> Experiment:
    return build(make_run(settings=flat(tomllib.loads(settings))))


def folder_of(context: Context) -> Path:
    """Of the run; the same for the server and for simulated clients."""
    config = context.run_config
    if missing := CONFIG - config.keys():
        names = ", ".join(sorted(missing))
        raise UserError(f"there is no {names} in this app's [tool.flwr.app.config]; fedtailor flower app writes one")
    if config["resume"]:
        return Path(str(config["resume"])).expanduser().absolute()
    name = str(config["run"]) or f"flower-{context.run_id}"
    if not PLAIN.fullmatch(name):
        raise UserError(f"a run's name has letters, digits, dots, dashes and underscores, got {name!r}")
    return (Path(str(config["runs-dir"])).expanduser() / name).absolute()


def tell() -> None:
    """What we log goes where Flower's own log goes, and on to `flwr log`."""
    ours = logging.getLogger("fedtailor")
    if not ours.handlers:
        ours.addHandler(logging.StreamHandler())
        ours.setLevel(logging.INFO)


client = client_app(reply)
server = ServerApp()


@server.main()
def main(grid: Grid, context: Context) -> None:
    from .conduct import conduct  # what clients, each in a process of its own, need not load

    tell()
    try:
        conduct(grid, folder_of(context), context.run_config)
    except UserError as error:
        sys.tracebacklimit = 0  # Flower prints where an error came from; here its sentence is all there is to know
        raise error.with_traceback(None) from None
