"""Behind a proxy: what leaves the site goes through it, unread, and what stays on the machine does not."""

from __future__ import annotations

import http.server
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from flwr.proto.fleet_pb2 import ActivateNodeRequest, ActivateNodeResponse
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor
from gated import gated
from test_gate import KEYS, SITE

from fedtailor.flower.init import init


class Proxy(http.server.BaseHTTPRequestHandler):
    """Takes every CONNECT to one place, and keeps what was asked and what passed."""

    to: tuple[str, int]
    asked: list[str]
    passed: list[bytes]

    def do_CONNECT(self) -> None:
        self.asked.append(self.path)
        with socket.create_connection(self.to) as there:
            self.send_response(200)
            self.end_headers()
            back = threading.Thread(target=self.carry, args=(there, self.connection))
            back.start()
            self.carry(self.connection, there)
            back.join()

    def do_GET(self) -> None:
        self.asked.append(self.path)
        self.send_error(502)

    def carry(self, one: socket.socket, other: socket.socket) -> None:
        try:
            while data := one.recv(65536):
                self.passed.append(data)
                other.sendall(data)
            other.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    def log_message(self, *_: Any) -> None: ...


@pytest.fixture
def proxy(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Proxy]]:
    made = type("Made", (Proxy,), {"asked": [], "passed": []})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), made) as serving:
        threading.Thread(target=serving.serve_forever).start()
        for name in ("HTTP_PROXY", "HTTPS_PROXY"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{serving.server_address[1]}")
        yield made
        serving.shutdown()


async def app(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] == "http":
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": ActivateNodeResponse(node_id=7).SerializeToString()})


def test_a_site_reaches_its_server_through_a_proxy(tmp_path: Path, proxy: type[Proxy]) -> None:
    """At port 443 of a name that only the proxy can resolve. TLS is from end to end: the proxy sees no head."""
    init(tmp_path / "fed", 0, ["fed.example.org"], port=443)
    ca, signing = (
        (tmp_path / "fed" / "server" / "ca.pem").read_bytes(),
        NodeAuthHttpInterceptor(SITE, SITE.public_key()),
    )
    with gated(app, tmp_path / "fed", lambda: KEYS, "") as server:
        proxy.to = server.public.getsockname()
        with FleetHttpClient.from_server_address("fed.example.org:443", False, ca, [signing]) as client:
            assert client.ActivateNode(ActivateNodeRequest(public_key=KEYS["client-0"])).node_id == 7
    assert proxy.asked == ["fed.example.org:443"]
    assert not any(b"flwr-public-key" in data or b"v1/fleet" in data for data in proxy.passed)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_what_stays_on_this_machine_goes_through_no_proxy(host: str, proxy: type[Proxy]) -> None:
    """As between a site's process and its SuperNode, in plain text."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler) as here:
        thread = threading.Thread(target=here.handle_request)
        thread.start()
        assert httpx.get(f"http://{host}:{here.server_address[1]}/").status_code == 501  # it can do nothing
        thread.join()
    assert proxy.asked == []
