"""The two ends of the app folder, for a SuperNode that is started by Flower's own command instead of ours.

Flower then runs this client in a new process for each message, which loads torch and CLIP anew: `--node-config
'home="…" data="folder:…"'`. Runs are conducted by `fedtailor flower server` alone, which needs no ServerApp.
"""

import logging
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from ..base.errors import UserError
from ..remote.client import Order
from .client import find_policy, open_site
from .messages import client_app

log = logging.getLogger("fedtailor.flower")


def reply(kind: str, data: Order, context: Context) -> bytes:
    """Flower tells the server of an exception in its own words, so that it gets none of ours."""
    try:
        return answer(data, context)
    except Exception as error:
        log.exception("no reply", exc_info=error)
        raise UserError("this site did not reply; its own log says why") from None


def answer(data: Order, context: Context) -> bytes:
    config = context.node_config
    if missing := {"home", "data"} - config.keys():
        raise UserError(f"start the SuperNode with {' and '.join(sorted(missing))} in its --node-config")
    home, pictures, backbone = (str(config.get(name, "")) for name in ("home", "data", "backbone"))
    site = open_site(Path(home), find_policy(Path(home)), pictures, backbone, server="the one of Flower's SuperNode")
    return site.handle(data)


client = client_app(reply)
server = ServerApp()


@server.main()
def main(grid: Grid, context: Context) -> None:
    raise UserError("ask for this run with fedtailor flower run; fedtailor flower server conducts it")
