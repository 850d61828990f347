"""Strangers who connect to a server and stall: what they make its gate hold, and for how long.

Connections come from one address, without any site's key: some say nothing, some stop in the middle of what they say,
some never stop. Memory is that of the gate's process, over what it was before they came.
"""

from __future__ import annotations

import socket
import ssl
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from .measure import ROOT
from .options import Options
from .rows import Row
from .show import note

if TYPE_CHECKING:
    from deployed import Deployed  # type: ignore[import-not-found]

CONNECTIONS = 60
PATIENCE = 30.0  # seconds after which what is still open counts as left open
HEAD = b"POST /v1/fleet/push-object HTTP/1.1\r\nhost: fed\r\n"
LENGTH = 5_000_000  # bytes, fewer than a request may have
Connect = Callable[[], socket.socket]


def says_nothing(plain: Connect, secure: Connect) -> socket.socket:
    return plain()


def agrees_on_tls(plain: Connect, secure: Connect) -> socket.socket:
    return secure()


def begins_a_head(plain: Connect, secure: Connect) -> socket.socket:
    return said(secure(), HEAD)


def says_a_head_without_end(plain: Connect, secure: Connect) -> socket.socket:
    return said(secure(), HEAD, *(b"x-%d: %s\r\n" % (n, b"y" * 1000) for n in range(5000)))


def says_most_of_a_body(plain: Connect, secure: Connect) -> socket.socket:
    return said(secure(), HEAD, b"content-length: %d\r\n\r\n" % LENGTH, b"y" * (LENGTH - 1))


KINDS = (says_nothing, agrees_on_tls, begins_a_head, says_a_head_without_end, says_most_of_a_body)


def said(connection: socket.socket, *parts: bytes) -> socket.socket:
    """As far as the other end listens."""
    connection.settimeout(2)
    with suppress(OSError):
        for part in parts:
            connection.sendall(part)
    return connection


def megabytes(pid: int) -> float:
    return int(Path(f"/proc/{pid}/status").read_text().split("VmRSS:")[1].split()[0]) / 1024


def still_open(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        while connection.recv(65536):
            pass
    except (BlockingIOError, ssl.SSLWantReadError):
        return True
    except OSError:
        pass
    return False


def stalled(there: Deployed, gate: int, kind: Callable[[Connect, Connect], socket.socket]) -> Row:
    trusted = ssl.create_default_context(cafile=str(there.home / "server" / "ca.pem"))

    def plain() -> socket.socket:
        return socket.create_connection(("127.0.0.1", there.port), timeout=5)

    def secure() -> socket.socket:
        return trusted.wrap_socket(plain(), server_hostname="127.0.0.1")

    before, began, held, refused = megabytes(gate), time.monotonic(), list[socket.socket](), 0
    for _ in range(CONNECTIONS):
        try:
            held.append(kind(plain, secure))
        except OSError:
            refused += 1
    time.sleep(2)
    peak, most = megabytes(gate) - before, sum(map(still_open, held))
    while time.monotonic() - began < PATIENCE and any(map(still_open, held)):
        time.sleep(0.5)
    took, left = time.monotonic() - began, sum(map(still_open, held))
    for connection in held:
        connection.close()
    name = kind.__name__.replace("_", " ")
    note(f"{name}: {peak:.0f} MB; {most} open after 2 s, {left} after {took:.0f} s")
    more = {"connections": CONNECTIONS, "refused": refused, "open": most, "left": left, "seconds": round(took, 1)}
    return Row("doors", "strangers that stall", name, wall_s=took, peak_mb=peak, more=more)


def run(options: Options) -> list[Row]:
    """A server anew for each kind, which finds no memory that another left free."""
    sys.path[:0] = [str(ROOT / "tests" / "flower")]
    from deployed import Deployed, until, write_data

    folder, rows = Path(tempfile.mkdtemp()), []
    there = Deployed(folder, write_data(folder / "data"))
    for kind in KINDS:
        there.server()
        try:
            until(lambda: there.status()["server"] == "up", told=there.logs)
            rows.append(stalled(there, gate_of(there.processes["server"].pid), kind))
        finally:
            there.stop()
    return rows


def gate_of(server: int) -> int:
    """The server's first child."""
    tasks = Path(f"/proc/{server}/task").glob("*/children")
    return min(int(pid) for task in tasks for pid in task.read_text().split())
