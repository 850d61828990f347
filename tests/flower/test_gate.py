"""The gate before Flower's SuperLink: from outside the Fleet API alone, to keys that are let in, and in time."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP384R1, EllipticCurvePrivateKey, generate_private_key
from flwr.proto.fleet_pb2 import PushMessagesRequest
from flwr.proto.message_pb2 import ObjectTree
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supercore.protobuf.client import ProtobufRequestContext
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from fedtailor.flower import gate
from fedtailor.flower.gate import REQUEST, Gate
from fedtailor.flower.pieces import PIECE

PUBLIC, CONTROL, TOKEN = 9092, 9093, "secret"
SITE, STRANGER = generate_private_key(SECP384R1()), generate_private_key(SECP384R1())
KEYS = {"client-0": public_key_to_bytes(SITE.public_key())}


def signed(key: EllipticCurvePrivateKey) -> dict[str, str]:
    """The heads that Flower's SuperNode sends."""
    request = httpx.Request("POST", "https://fed.example.org/v1/fleet/pull-messages")
    given = ProtobufRequestContext("", PushMessagesRequest(), request)
    NodeAuthHttpInterceptor(key, key.public_key()).intercept(given, lambda context: httpx.Response(200))
    return {name: value for name, value in request.headers.items() if name.startswith("flwr-")}


class Asked:
    """A request: the status that came back, what of it was read, and what the app behind the gate got."""

    def __init__(
        self,
        path: str,
        body: bytes = b"",
        port: int = PUBLIC,
        length: int | None = -1,
        limit: int = 0,
        heads: dict[str, str] | None = None,
        ends: bool = True,
    ) -> None:
        self.seen, self.told, self.read, self.known = list[bytes](), list[dict[str, Any]](), 0, 0
        self.parts: Iterator[dict[str, Any]] = iter(
            [{"body": body[:3], "more_body": True}, {"body": body[3:], "more_body": not ends}]
        )
        said = len(body) if length == -1 else length
        given = signed(SITE) if heads is None else heads
        headers = [(name.encode(), value.encode()) for name, value in given.items()]
        headers += [] if said is None else [(b"content-length", str(said).encode())]
        state = {"known": self.count} if port == PUBLIC else {}  # as doors.py does
        scope = {"type": "http", "path": path, "server": ("127.0.0.1", port), "headers": headers, "state": state}
        asyncio.run(Gate(self.app, limit, lambda: KEYS, TOKEN)(scope, self.receive, self.send))

    async def app(self, scope: Any, receive: Any, send: Any) -> None:
        more = True
        while more:
            part = await receive()
            self.seen.append(part["body"])
            more = part["more_body"]
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def receive(self) -> dict[str, Any]:
        self.read += 1
        if (part := next(self.parts, None)) is None:
            await asyncio.sleep(60)
        return {"type": "http.request", **(part or {})}

    async def send(self, part: dict[str, Any]) -> None:
        self.told.append(part)

    def count(self) -> None:
        self.known += 1

    @property
    def status(self) -> int:
        return int(self.told[0]["status"])

    @property
    def body(self) -> bytes:
        return b"".join(self.seen)


def announced(pieces: int) -> bytes:
    tree = ObjectTree(object_id="message", children=[ObjectTree(object_id=f"{n}") for n in range(pieces - 1)])
    return PushMessagesRequest(message_object_trees=[tree]).SerializeToString()


def test_from_outside_there_is_only_the_fleet() -> None:
    asked = Asked("/v1/fleet/pull-messages", b"hello")
    assert (asked.status, asked.body) == (200, b"hello")
    for path in ("/v1/control/start-run", "/v1/runtime/acquire-task", "/docs", "/health", "/", "/v1/fleetless"):
        asked = Asked(path, b"hello", heads={**signed(SITE), "authorization": f"Bearer {TOKEN}"})
        assert (asked.status, asked.body) == (404, b"")


WRONG: dict[str, dict[str, str]] = {
    "nobody": {},
    "a stranger": signed(STRANGER),
    "another's signature": {**signed(SITE), "flwr-signature": signed(STRANGER)["flwr-signature"]},
    "another time": {**signed(SITE), "flwr-timestamp": "2026-11-18T09:30:00+00:00"},
    "no time": {name: value for name, value in signed(SITE).items() if name != "flwr-timestamp"},
    "no key": {**signed(SITE), "flwr-public-key": "%%%"},
    "not a key": {**signed(SITE), "flwr-public-key": "aGVsbG8="},
    "the token": {"authorization": f"Bearer {TOKEN}"},
}


@pytest.mark.parametrize("who", WRONG)
def test_of_a_stranger_nothing_is_read(who: str) -> None:
    asked = Asked("/v1/fleet/push-object", b"hello", heads=WRONG[who])
    assert (asked.status, asked.read, asked.seen, asked.known) == (401, 0, [], 0)
    assert (b"connection", b"close") in asked.told[0]["headers"]


def test_a_site_is_known_from_its_first_request() -> None:
    assert Asked("/v1/fleet/push-object", b"hello").known == 1


def test_no_request_is_longer_than_a_piece() -> None:
    assert Asked("/v1/fleet/push-object", length=REQUEST).status == 200
    for length in (REQUEST + 1, None):
        asked = Asked("/v1/fleet/push-object", b"hello", length=length)
        assert (asked.status, asked.read) == (413, 0)


def test_a_body_has_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "BODY", 0.01)
    asked = Asked("/v1/fleet/push-object", b"hello", ends=False)
    assert (asked.status, asked.seen) == (408, [])


@pytest.mark.parametrize(("pieces", "status"), [(1, 200), (18, 200), (19, 413), (1000, 413)])
def test_a_message_is_refused_by_its_announcement(pieces: int, status: int) -> None:
    """Ten pieces of a message and eight more are let in."""
    body = announced(pieces)
    asked = Asked("/v1/fleet/push-messages", body, limit=10 * PIECE)
    assert (asked.status, asked.body) == (status, body if status == 200 else b"")


def test_what_is_no_announcement_is_refused() -> None:
    asked = Asked("/v1/fleet/push-messages", b"\xff\xff\xff\xff", limit=PIECE)
    assert (asked.status, asked.body) == (413, b"")


def test_the_control_port_asks_for_the_token() -> None:
    for path in ("/v1/control/start-run", "/v1/control/list-nodes", "/v1/fleet/pull-messages", "/docs", "/health"):
        for heads in ({}, signed(SITE), {"authorization": "Bearer other"}, {"authorization": TOKEN}):
            asked = Asked(path, port=CONTROL, heads=heads)
            assert (asked.status, asked.read) == (401, 0)
        assert Asked(path, port=CONTROL, heads={"authorization": f"Bearer {TOKEN}"}).status == 200


def test_the_gate_takes_no_torch() -> None:
    """Nor does the process that carries a site's messages, nor a container's check: each would have 200 MB more."""
    for module in ("superlink", "supernode", "health"):
        text = f"import sys, fedtailor.flower.{module}; print('torch' in sys.modules)"
        done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=300, check=True)
        assert done.stdout == "False\n", module


def test_flowers_runtime_has_secrets_of_its_own() -> None:
    assert Asked("/v1/runtime/acquire-task", port=CONTROL, heads={}).status == 200
