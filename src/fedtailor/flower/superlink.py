"""Flower's SuperLink as a process of ours: `python -m fedtailor.flower.superlink PARENT PUBLIC LIMIT OPTIONS…`

flwr 1.41 serves everything at one address, also the Control API, which starts runs and has no login. Here the public
address answers to the Fleet API alone, and takes no message that is too long; all else is on this machine only.
"""

import socket
import sys
from pathlib import Path
from typing import Any

import uvicorn
from flwr.proto.fleet_pb2 import PushMessagesRequest
from flwr.supercore.app_utils import start_parent_process_monitor
from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
from flwr.superlink.cli.flower_superlink import SuperLinkLifespan, _parse_superlink_lifespan_config
from flwr.superlink.main import create_app
from google.protobuf.message import DecodeError
from starlette.responses import Response

from .health import Health
from .pieces import PIECE

FLEET, PUSH = "/v1/fleet/", "/v1/fleet/push-messages"
REQUEST = PIECE + (1 << 20)  # bytes: a piece of a message and what is around it


class Gate:
    """An ASGI app before another. A message is announced as a tree of pieces before they come, so it can be refused."""

    def __init__(self, app: Any, control_port: int, limit: int) -> None:
        self.app, self.control_port = app, control_port
        self.pieces = 8 + limit // PIECE  # some hold the message, some only name others

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan" or scope["server"][1] == self.control_port:
            await self.app(scope, receive, send)
        elif scope["type"] != "http" or not scope["path"].startswith(FLEET):
            await Response(status_code=404)(scope, receive, send)
        elif int(dict(scope["headers"]).get(b"content-length", REQUEST + 1)) > REQUEST:
            await Response(status_code=413)(scope, receive, send)  # also if it does not tell its length
        elif scope["path"] != PUSH:
            await self.app(scope, receive, send)
        else:
            body, again = await read(receive)
            app = Response(status_code=413) if too_many(body, self.pieces) else self.app
            await app(scope, again, send)


async def read(receive: Any) -> tuple[bytes, Any]:
    """A request's body, and what gives it once more."""
    body, more = b"", True
    while more:
        part = await receive()
        body, more = body + part.get("body", b""), part.get("more_body", False)
    parts = iter([{"type": "http.request", "body": body, "more_body": False}])

    async def again() -> Any:
        return next(parts, None) or await receive()

    return body, again


def too_many(body: bytes, pieces: int) -> bool:
    try:
        trees = PushMessagesRequest.FromString(body).message_object_trees
    except DecodeError:
        return True
    return sum(1 for tree in trees for _ in iterate_object_tree(tree)) > pieces


def listen(address: str) -> socket.socket:
    host, port = address.rsplit(":", 1)
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((host.strip("[]"), int(port)))
    return listener


def main() -> None:
    _, parent, public, limit, *options = sys.argv
    sys.argv = ["flower-superlink", *options]
    start_parent_process_monitor(int(parent))
    config = _parse_superlink_lifespan_config()
    listeners = [listen(f"{config.host}:{config.port}"), listen(public)]
    gate = Gate(create_app(config, SuperLinkLifespan), config.port, int(limit))
    app = Health(gate, config.port, Path(config.ssl_certfile or "").parent)
    tls: Any = {"ssl_keyfile": config.ssl_keyfile, "ssl_certfile": config.ssl_certfile}
    uvicorn.Server(uvicorn.Config(app, access_log=False, log_level="warning", **tls)).run(sockets=listeners)


if __name__ == "__main__":
    main()
