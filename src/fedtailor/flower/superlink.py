"""Flower's SuperLink as a process of ours: `python -m fedtailor.flower.superlink PARENT PUBLIC LIMIT OPTIONS…`

flwr 1.41 serves everything at one address: the Fleet API, for sites, and the Control API, which starts runs and has no
login. Here there are two addresses. The public one answers to the Fleet API alone, and takes no message that is longer
than any method's; everything else is at the other one, on this machine only.
"""

from __future__ import annotations

import socket
import sys
from typing import Any

import uvicorn
from flwr.proto.fleet_pb2 import PushMessagesRequest
from flwr.supercore.app_utils import start_parent_process_monitor
from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
from flwr.superlink.cli.flower_superlink import SuperLinkLifespan, _parse_superlink_lifespan_config
from flwr.superlink.main import create_app
from google.protobuf.message import DecodeError

from .messages import PIECE

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
            await refuse(send, 404)
        elif int(dict(scope["headers"]).get(b"content-length", REQUEST + 1)) > REQUEST:
            await refuse(send, 413)  # also if it does not tell its length
        elif scope["path"] != PUSH:
            await self.app(scope, receive, send)
        elif too_many(body := await read(receive), self.pieces):
            await refuse(send, 413)
        else:
            await self.app(scope, again(body, receive), send)


async def read(receive: Any) -> bytes:
    body, more = b"", True
    while more:
        part = await receive()
        body, more = body + part.get("body", b""), part.get("more_body", False)
    return body


def again(body: bytes, receive: Any) -> Any:
    """What was read, to be read once more."""
    parts = iter([{"type": "http.request", "body": body, "more_body": False}])

    async def replay() -> Any:
        return next(parts, None) or await receive()

    return replay


def too_many(body: bytes, pieces: int) -> bool:
    try:
        trees = PushMessagesRequest.FromString(body).message_object_trees
    except DecodeError:
        return True
    return sum(1 for tree in trees for _ in iterate_object_tree(tree)) > pieces


async def refuse(send: Any, status: int) -> None:
    await send({"type": "http.response.start", "status": status, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body", "body": b""})


def listen(address: str) -> socket.socket:
    host, port = address.rsplit(":", 1)
    host = host.strip("[]")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((host, int(port)))
    return listener


def main() -> None:
    parent, public, limit = sys.argv[1:4]
    sys.argv = ["flower-superlink", *sys.argv[4:]]
    start_parent_process_monitor(int(parent))
    config = _parse_superlink_lifespan_config()
    listeners = [listen(f"{config.host}:{config.port}"), listen(public)]
    gate = Gate(create_app(config, SuperLinkLifespan), config.port, int(limit))
    settings = uvicorn.Config(
        gate, ssl_keyfile=config.ssl_keyfile, ssl_certfile=config.ssl_certfile, access_log=False, log_level="warning"
    )
    uvicorn.Server(settings).run(sockets=listeners)


if __name__ == "__main__":
    main()
