"""How many may be at the sites' port before anybody knows them, and how long they may take.

uvicorn takes every connection, and asyncio gives each 256 kB to read into, whether or not it ever says a word. Here a
connection is a stranger's until a request on it is signed by a key that is let in. Of strangers there are only so many,
in all and from one address, and each step has its time: the TLS handshake, a request's head and, in gate.py, its body.
And a certificate that has been renewed is shown to who comes next; who is in stays.
"""

import asyncio
import logging
import ssl
from contextlib import suppress
from pathlib import Path
from socket import socket
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from .gate import KNOWN

MOST = 800  # connections at the sites' port, known ones too: a process may have 1024 files open
STRANGERS, EACH = 200, 50  # of these at a time: strangers, and strangers from one address
HANDSHAKE = 10.0  # seconds
HEAD = 15.0  # seconds until a request's head is there, from when the connection is, or from the reply before
LOOK = 10.0  # seconds between two looks at the certificate
END = 2  # seconds that requests may still take when the server is to end

log = logging.getLogger("uvicorn.error")


class Conversation(H11Protocol):
    """uvicorn's protocol, whose heads are at most 64 kB long; here they have to come in time, too."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.over: asyncio.Future[None] = self.loop.create_future()
        self.patience: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.await_head()

    def await_head(self) -> None:
        self.stop_waiting()
        self.patience = self.loop.call_later(HEAD, self.transport.abort)

    def stop_waiting(self) -> None:
        if self.patience is not None:
            self.patience.cancel()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self.stop_waiting()  # the gate has it

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self.await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self.stop_waiting()
        super().connection_lost(exc)
        if not self.over.done():
            self.over.set_result(None)


class Server(uvicorn.Server):
    """`run(sockets=[control])`: uvicorn's own way there, and this one at the sites' port."""

    def __init__(self, app: Any, public: socket, key: str, certificate: str) -> None:
        """On asyncio: uvloop's TLS goes on reading from a connection that is to be closed."""
        quiet: Any = {"access_log": False, "log_level": "warning", "server_header": False, "ws": "none"}
        files: Any = {"ssl_keyfile": key, "ssl_certfile": certificate}
        super().__init__(uvicorn.Config(app, loop="asyncio", timeout_graceful_shutdown=END, **quiet, **files))
        self.public, self.strangers = public, list[str]()  # by address
        self.own: list[asyncio.Task[None]] = []
        self.visits: set[asyncio.Task[None]] = set()

    async def startup(self, sockets: list[socket] | None = None) -> None:
        await super().startup(sockets)
        if not self.should_exit:
            self.public.setblocking(False)
            self.public.listen(self.config.backlog)
            self.own = [asyncio.create_task(work) for work in (self.accept(), self.keep_certificate())]

    async def shutdown(self, sockets: list[socket] | None = None) -> None:
        for task in self.own:
            task.cancel()
        self.public.close()
        await super().shutdown(sockets)

    async def accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, (host, *_) = await loop.sock_accept(self.public)
            except OSError as error:  # it has gone again, or too many files are open
                log.warning("nobody could come in: %s", error)
                await asyncio.sleep(0.1)
                continue
            if self.is_full(host):
                connection.close()
            else:
                self.strangers.append(host)
                visit = loop.create_task(self.receive(connection, host))
                self.visits.add(visit)
                visit.add_done_callback(self.visits.discard)

    def is_full(self, host: str) -> bool:
        strangers = self.strangers
        return len(self.visits) >= MOST or len(strangers) >= STRANGERS or strangers.count(host) >= EACH

    async def receive(self, connection: socket, host: str) -> None:
        """A connection from its first byte to its end."""
        stranger = True

        def known() -> None:
            nonlocal stranger
            if stranger:
                self.strangers.remove(host)
            stranger = False

        state = {**self.lifespan.state, KNOWN: known}
        conversation = Conversation(config=self.config, server_state=self.server_state, app_state=state)
        loop = asyncio.get_running_loop()
        try:
            times = {"ssl_handshake_timeout": HANDSHAKE, "ssl_shutdown_timeout": HANDSHAKE}
            await loop.connect_accepted_socket(lambda: conversation, connection, ssl=self.config.ssl, **times)
            await conversation.over
        except OSError as error:  # of TLS, too
            log.debug("%s did not come in: %s", host, error)
        finally:
            known()
            connection.close()

    async def keep_certificate(self) -> None:
        certificate, key = (Path(str(name)) for name in (self.config.ssl_certfile, self.config.ssl_keyfile))
        shown = stamps(certificate, key)
        while True:
            await asyncio.sleep(LOOK)
            if (now := stamps(certificate, key)) != shown and self.config.ssl is not None:
                with suppress(ssl.SSLError, OSError):  # one of them is there and the other not yet
                    self.config.ssl.load_cert_chain(certificate, key)
                    shown = now
                    log.warning("the server's certificate was renewed")


def stamps(*files: Path) -> list[int]:
    return [file.stat().st_mtime_ns if file.is_file() else 0 for file in files]
