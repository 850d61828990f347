"""A transport of one's own, whole: plain HTTP. Sites fetch what is meant for them and post their replies.

A message stays until it is replied to, so a site that dies on the way finds it again. A real one would add TLS, and
tokens that somebody hands out and takes back.
"""

from __future__ import annotations

import http.client
import time
from collections.abc import Callable, Collection, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from queue import SimpleQueue
from threading import Event, Thread

from fedtailor.remote.client import RemoteClient
from fedtailor.remote.engine import Received

AWAY = 5.0  # seconds after which a site that has not asked for messages is gone


class HttpTransport:
    """`tokens`: what each client proves by who it is. `limit`: bytes of a reply."""

    def __init__(self, tokens: Mapping[str, int], limit: int) -> None:
        self.tokens, self.limit, self.numbers = tokens, limit, count(1)
        self.seen: dict[int, float] = {}
        self.due: dict[int, tuple[int, bytes]] = {}  # to each client one message, with its number
        self.came = SimpleQueue[Received]()
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (Handler,), {"transport": self}))
        Thread(target=self.server.serve_forever, args=[0.05], daemon=True).start()

    def online(self) -> Collection[int]:
        return {k for k, last in self.seen.items() if time.monotonic() - last < AWAY}

    def send(self, kind: str, round_: int, data: Mapping[int, bytes]) -> None:
        self.due |= {k: (next(self.numbers), message) for k, message in data.items()}

    def receive(self) -> list[Received]:
        return [self.came.get() for _ in range(self.came.qsize())]

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


class Handler(BaseHTTPRequestHandler):
    transport: HttpTransport

    def handle_one(self, who: int) -> tuple[int, bytes]:
        here, length = self.transport, int(self.headers.get("Content-Length", 0))
        here.seen[who] = time.monotonic()
        number, message = here.due.get(who, (0, b""))
        if self.command == "GET":
            self.number = number
            return 200, message
        if length > here.limit:
            here.came.put(Received(who, trouble=f"a reply of {length} bytes, more than {here.limit}"))
            return 413, b""
        here.came.put(Received(who, self.rfile.read(length)))
        if self.headers["Number"] == str(number):
            here.due.pop(who)
        return 200, b""

    def do_GET(self) -> None:
        self.number, who = 0, self.transport.tokens.get(self.headers.get("Authorization", ""))
        code, body = (401, b"") if who is None else self.handle_one(who)
        self.send_response(code)
        self.send_header("Number", str(self.number))
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_GET  # noqa: N815  # the standard library's names

    def log_message(self, *_: object) -> None: ...


def ask(port: int, token: str, reply: bytes | None = None, number: str = "") -> tuple[int, bytes, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port)
    headers = {"Authorization": token, "Number": number}
    connection.request("GET" if reply is None else "POST", "/", reply, headers)
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer.status, body, answer.headers["Number"]


def serve(make: Callable[[], RemoteClient], port: int, token: str, over: Event) -> None:
    """A site: what it is asked, until it is over."""
    site = make()
    while not over.is_set():
        _, message, number = ask(port, token)
        if message:
            ask(port, token, site.handle(message), number)
        else:
            over.wait(0.01)
