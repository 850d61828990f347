"""An app behind the gate and its doors, in a thread of this process, with the certificate of a deployment's folder."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from deployed import until

from fedtailor.flower.doors import Server
from fedtailor.flower.gate import Gate, Keys
from fedtailor.flower.superlink import listen


@contextmanager
def gated(app: Any, folder: Path, keys: Keys, token: str, port: int = 0, control: int = 0) -> Iterator[Server]:
    """The ports are free ones, unless they are given."""
    files = str(folder / "server" / "server.key"), str(folder / "server" / "server.pem")
    server = Server(Gate(app, 10**6, keys, token), listen(f"127.0.0.1:{port}"), *files)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listen(f"127.0.0.1:{control}")]})
    thread.start()
    try:
        until(lambda: server.own or not thread.is_alive())
        yield server
    finally:
        server.should_exit = True
        thread.join()
