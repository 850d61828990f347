"""The two ends of the app folder, for a SuperNode that is started by Flower's own command instead of ours.

Flower then runs this client in a new process for each message, which loads torch and CLIP anew: `--node-config
'home="…" data="folder:…"'`. Runs are conducted by `fedtailor flower server` alone, which needs no ServerApp.
"""

from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from ..base.errors import UserError
from ..remote.client import RemoteClient
from .messages import client_app
from .sites import site_session


def reply(kind: str, data: bytes, context: Context) -> bytes:
    config = context.node_config
    if missing := {"home", "data"} - config.keys():
        raise UserError(f"start the SuperNode with {' and '.join(sorted(missing))} in its --node-config")
    home, pictures, backbone = (str(config.get(name, "")) for name in ("home", "data", "backbone"))
    site = RemoteClient(Path(home) / "state", lambda invitation: site_session(invitation, pictures, backbone))
    return site.handle(data)


client = client_app(reply)
server = ServerApp()


@server.main()
def main(grid: Grid, context: Context) -> None:
    raise UserError("ask for this run with fedtailor flower run; fedtailor flower server conducts it")
