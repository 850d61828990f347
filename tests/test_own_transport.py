"""A transport is four calls: a whole run over plain HTTP ends in the same bits, though a site dies on the way."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread

import pytest

from fedtailor.remote.client import RemoteClient
from fedtailor.remote.engine import RemoteEngine
from fedtailor.simulation.loop import run_round
from http_transport import HttpTransport, ask, serve
from remote import RUN, Killed, RemoteWorld, here
from world import CLIENTS, world

TOKENS = {f"token of {k}": k for k in range(CLIENTS)}


@contextmanager
def served(there: RemoteWorld, transport: HttpTransport, deaths: int = 0) -> Iterator[None]:
    """A thread for each site; the first of them dies so many times after its work, before it replies."""
    over, left = Event(), [deaths]

    class Mortal(RemoteClient):
        def handle(self, data: object) -> bytes:
            reply = super().handle(data)  # type: ignore[arg-type]
            if left[0] and b"pass-reply" in reply and self.folder.name == "client-0":
                left[0] -= 1
                raise Killed
            return reply

    def site(k: int) -> RemoteClient:
        made = there.site(k)
        made.__class__ = Mortal
        return made

    def live(k: int, token: str) -> None:
        while not over.is_set():
            try:
                serve(lambda: site(k), transport.server.server_port, token, over)
            except Killed:
                continue

    threads = [Thread(target=live, args=(k, token)) for token, k in TOKENS.items()]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()
        transport.close()
    assert left == [0]


@pytest.mark.parametrize("method", ["fedavg", "capt", "fedcopl"])
def test_a_run_over_plain_http(method: str, tmp_path: Path) -> None:
    tuner = {"capt": "coupled+class_prompt", "fedcopl": "text_prompt+visual_prompt"}.get(method, "text_prompt")
    there, transport = RemoteWorld(world(method, tuner), tmp_path), HttpTransport(TOKENS, 10_000_000)
    engine, server = RemoteEngine(there.experiment, None, transport, RUN), there.experiment.job.first_server()
    with served(there, transport, deaths=2):
        engine.open()
        while server.round < there.experiment.rounds:
            server, _ = run_round(there.experiment, server, engine)
            engine.committed()
    there.made = engine
    assert there.bits(server) == here(world(method, tuner))
    assert not [step.dropped for step in engine.log if step.dropped]


def test_strangers_and_long_replies(tmp_path: Path) -> None:
    """Who has no token gets nothing; a reply beyond the limit is not read, and is the trouble of who sent it."""
    transport = HttpTransport(TOKENS, 10)
    port = transport.server.server_port
    try:
        assert ask(port, "mine")[:2] == (401, b"")
        assert ask(port, "token of 1") == (200, b"", "0")
        assert transport.online() == {1}
        transport.send("train.pass", 0, {1: b"to do"})
        assert ask(port, "mine", b"done", "1")[0] == 401
        assert ask(port, "token of 1") == (200, b"to do", "1")
        assert ask(port, "token of 1", b"much too long", "1")[0] == 413
        assert ask(port, "token of 1", b"done", "1")[0] == 200
        (long, done) = transport.receive()
        assert (long.client, long.trouble) == (1, "a reply of 13 bytes, more than 10")
        assert (done.client, done.data) == (1, b"done")
        assert ask(port, "token of 1") == (200, b"", "0")
    finally:
        transport.close()
