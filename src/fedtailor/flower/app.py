"""The two ends of the app folder, for a SuperNode that is started by Flower's own command and not by ours.

It then runs this client in a new process for each message, with torch and CLIP loaded anew: `--node-config 'home="…"
data="folder:…"'`. Runs are conducted by `fedtailor flower server` alone, which needs no ServerApp.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from ..base.errors import UserError
from ..remote.client import RemoteClient
from .messages import client_app
from .sites import site_session


@cache
def site(home: str, data: str, backbone: str) -> RemoteClient:
    return RemoteClient(Path(home) / "state", lambda charter: site_session(charter, data, backbone))


def answer(kind: str, letter: bytes, context: Context) -> bytes:
    config = context.node_config
    if missing := {"home", "data"} - config.keys():
        raise UserError(f"start the SuperNode with {' and '.join(sorted(missing))} in its --node-config")
    return site(str(config["home"]), str(config["data"]), str(config.get("backbone", ""))).answer(letter)


client = client_app(answer)
server = ServerApp()


@server.main()
def main(grid: Grid, context: Context) -> None:
    raise UserError("this run is to be asked for with fedtailor flower run, and conducted by fedtailor flower server")
