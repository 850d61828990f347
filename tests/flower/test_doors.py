"""The sites' port: how many strangers it holds and for how long, and the certificate that it shows."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from deployed import until
from gated import gated
from test_gate import KEYS, SITE, STRANGER, TOKEN, signed

from fedtailor.flower import doors
from fedtailor.flower.doors import Server
from fedtailor.flower.init import init, renew

PATH = "/v1/fleet/pull-messages"


async def app(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] == "http":
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body"})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("doors") / "fed"
    init(folder, 1, ["127.0.0.1"])
    return folder


@pytest.fixture
def server(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """In a thread of its own."""
    for name, value in {"LOOK": 0.05, "STRANGERS": 6, "EACH": 4}.items():
        monkeypatch.setattr(doors, name, value)
    with gated(app, folder, lambda: KEYS, TOKEN) as server:
        yield server


def plain(server: Server) -> socket.socket:
    return socket.create_connection(server.public.getsockname(), timeout=30)


def secure(server: Server, folder: Path) -> ssl.SSLSocket:
    context = ssl.create_default_context(cafile=str(folder / "server" / "ca.pem"))
    return context.wrap_socket(plain(server), server_hostname="127.0.0.1")


def request(key: Any, body: bytes = b"hello") -> bytes:
    heads = "".join(f"{name}: {value}\r\n" for name, value in signed(key).items())
    return f"POST {PATH} HTTP/1.1\r\nhost: fed\r\ncontent-length: {len(body)}\r\n{heads}\r\n".encode() + body


def ended(connection: socket.socket) -> bool:
    """From the other end, before this one gives up."""
    try:
        return connection.recv(1) == b""
    except (ConnectionError, ssl.SSLError):
        return True


def test_a_site_comes_in(server: Server, folder: Path) -> None:
    with closing(secure(server, folder)) as site:
        for _ in range(3):
            site.sendall(request(SITE))
            assert site.recv(1000).startswith(b"HTTP/1.1 200 OK")
        assert server.strangers == []
        assert len(server.visits) == 1
    until(lambda: not server.visits)


def test_a_stranger_is_told_so_and_shown_out(server: Server, folder: Path) -> None:
    with closing(secure(server, folder)) as stranger:
        stranger.sendall(request(STRANGER))
        assert stranger.recv(1000).startswith(b"HTTP/1.1 401 ")
        assert ended(stranger)
    until(lambda: not server.visits)
    assert server.strangers == []


@pytest.mark.parametrize("begun", ["", "handshake", "a head", "a second head"])
def test_who_is_slow_is_shown_out(server: Server, folder: Path, begun: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doors, "HEAD" if begun else "HANDSHAKE", 2.0)
    with closing(secure(server, folder) if begun else plain(server)) as slow:
        if begun == "a second head":
            slow.sendall(request(SITE))
            slow.recv(1000)
        if begun.endswith("head"):
            slow.sendall(b"POST /v1/fleet/pull-messages HTTP/1.1\r\n")
        assert ended(slow)
    until(lambda: not server.visits)
    assert server.strangers == []


def test_a_head_without_end_is_not_read(server: Server, folder: Path) -> None:
    def send(connection: socket.socket) -> None:
        connection.sendall(b"POST / HTTP/1.1\r\nx: ")
        for _ in range(10_000):
            connection.sendall(b"y" * 1000)

    with closing(secure(server, folder)) as stranger, pytest.raises((ConnectionError, ssl.SSLError)):
        send(stranger)
    until(lambda: not server.visits)


def test_only_so_many_strangers(server: Server, folder: Path) -> None:
    """From one address. A site that is known takes no stranger's place; and when they have gone there is room again."""
    with ExitStack() as stack:
        site = stack.enter_context(secure(server, folder))
        site.sendall(request(SITE))
        assert site.recv(1000).startswith(b"HTTP/1.1 200 OK")
        held = [stack.enter_context(plain(server)) for _ in range(4)]
        until(lambda: len(server.strangers) == 4)
        with plain(server) as more:
            assert ended(more)
        assert server.is_full("127.0.0.1")
        assert not server.is_full("192.0.2.7")
        server.strangers += ["192.0.2.7"] * 2  # six in all
        assert server.is_full("192.0.2.8")
        del server.strangers[-2:]
        for connection in held:
            connection.close()
        until(lambda: not server.strangers)
        with closing(secure(server, folder)) as other:
            other.sendall(request(SITE))
            assert other.recv(1000).startswith(b"HTTP/1.1 200 OK")


def test_only_so_many_at_all(server: Server, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doors, "MOST", 1)
    with closing(secure(server, folder)) as site:
        site.sendall(request(SITE))
        assert site.recv(1000).startswith(b"HTTP/1.1 200 OK")
        with plain(server) as more:
            assert ended(more)


def test_a_renewed_certificate_is_shown_to_who_comes_next(server: Server, folder: Path) -> None:
    def shown() -> int:
        with closing(secure(server, folder)) as site:
            return x509.load_der_x509_certificate(site.getpeercert(binary_form=True) or b"").serial_number

    with closing(secure(server, folder)) as before:
        old = shown()
        (folder / "server" / "server.pem").write_text("half writt")
        renew(folder)
        new = x509.load_pem_x509_certificate((folder / "server" / "server.pem").read_bytes()).serial_number
        until(lambda: shown() == new)
        assert old != new
        before.sendall(request(SITE))
        assert before.recv(1000).startswith(b"HTTP/1.1 200 OK")
