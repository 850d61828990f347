"""Whether a site is in touch with its server: told when that changes, with the reason, and not again and again."""

from __future__ import annotations

import os
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from deployed import free_ports

from fedtailor.flower import link as link_module
from fedtailor.flower import pki
from fedtailor.flower.link import FRESH, Link, unreachable


@pytest.fixture(scope="module")
def certified(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two CAs, and a server's certificate of the first."""
    folder = tmp_path_factory.mktemp("pki")
    ca = pki.make_ca("one")
    server = pki.make_server_certificate(ca, ["127.0.0.1"])
    (folder / "ca.pem").write_bytes(ca.pem)
    (folder / "other.pem").write_bytes(pki.make_ca("other").pem)
    (folder / "server.pem").write_bytes(server.pem)
    (folder / "server.key").write_bytes(pki.private_bytes(server.key))
    return folder


@pytest.fixture
def server(certified: Path) -> Iterator[str]:
    """Says 404 to whoever asks."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certified / "server.pem", certified / "server.key")
    listener = socket.create_server(("127.0.0.1", 0))

    def answer() -> None:
        while True:
            try:
                raw, _ = listener.accept()
                with raw, context.wrap_socket(raw, server_side=True) as talk:
                    talk.recv(4096)
                    talk.sendall(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
            except ssl.SSLError:
                continue
            except OSError:
                return

    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    yield f"127.0.0.1:{listener.getsockname()[1]}"
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join(timeout=10)


def test_why_a_server_cannot_be_reached(
    server: str, certified: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert unreachable(server, certified / "ca.pem") == ""
    assert "its certificate is none of this federation's" in unreachable(server, certified / "other.pem")
    (port,) = free_ports(1)
    assert unreachable(f"127.0.0.1:{port}", certified / "ca.pem") == "Connection refused"
    monkeypatch.setattr(link_module, "PATIENCE", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        assert unreachable(f"127.0.0.1:{silent.getsockname()[1]}", certified / "ca.pem").startswith("no answer within")


def test_each_change_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Who is in touch asks nothing; a server that answers without having let the site in changes nothing."""
    caplog.set_level("INFO")
    says = ["Connection refused"]
    monkeypatch.setattr(link_module, "unreachable", lambda server, ca: says[0])
    alive = tmp_path / "alive"
    link = Link("fed.example.org:9092", tmp_path / "ca.pem", alive)

    def looked(*told: str) -> None:
        caplog.clear()
        assert link.look() == bool(told)
        assert not link.look()
        assert [record.getMessage() for record in caplog.records] == list(told)

    refused = "cannot reach fed.example.org:9092: Connection refused; trying again"
    looked(refused)
    says[0] = ""
    looked()
    alive.touch()
    looked("connected to fed.example.org:9092")
    os.utime(alive, (0, time.time() - FRESH - 1))
    looked()
    says[0] = "Connection refused"
    looked(refused)


def test_an_unreachable_server_is_told_at_once(
    tmp_path: Path, certified: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """In its thread, without anybody asking; a mark of an earlier process counts for nothing."""
    caplog.set_level("INFO")
    (port,) = free_ports(1)
    monkeypatch.setattr(link_module, "PAUSES", (0.01, 0.1))
    (tmp_path / "alive").touch()
    link = Link(f"127.0.0.1:{port}", certified / "ca.pem", tmp_path / "alive")
    with link:
        ends = time.monotonic() + 60
        while link.trouble is None and time.monotonic() < ends:
            time.sleep(0.01)
    assert [record.getMessage() for record in caplog.records] == [
        f"connecting to 127.0.0.1:{port}",
        f"cannot reach 127.0.0.1:{port}: Connection refused; trying again",
    ]
