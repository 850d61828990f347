"""The server on loopback."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Callable
from pathlib import Path

import uvicorn

from ..base.errors import UserError
from .app import make_app
from .children import Child

HOST = "127.0.0.1"


def serve(root: Path, port: int, tell: Callable[[str], None], ended: Callable[[Child], None]) -> None:
    """Until Ctrl-C or SIGTERM; `tell` has the address as soon as it answers, `ended` each run that stops with it."""
    listening = bind(port)
    port, token = listening.getsockname()[1], secrets.token_urlsafe(32)
    app = make_app(root, token, port, ended)
    settings = uvicorn.Config(app, log_level="warning", access_log=False, timeout_graceful_shutdown=3)
    tell(f"http://{HOST}:{port}/?token={token}")  # it listens already: whoever is quick waits a moment
    try:
        uvicorn.Server(settings).run(sockets=[listening])
    except KeyboardInterrupt:
        pass  # uvicorn has ended everything by then, and passes the signal on
    finally:
        listening.close()


def bind(port: int) -> socket.socket:
    made = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        made.bind((HOST, port))
    except OSError as error:
        made.close()
        raise UserError(f"--port {port}: {error.strerror}; take another one, or 0 for any that is free") from error
    made.listen(64)
    return made
