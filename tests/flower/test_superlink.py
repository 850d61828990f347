"""The gate before Flower's SuperLink: from outside the Fleet API alone, and no message beyond a limit."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import Any

import pytest
from flwr.proto.fleet_pb2 import PushMessagesRequest
from flwr.proto.message_pb2 import ObjectTree

from fedtailor.flower.pieces import PIECE
from fedtailor.flower.superlink import REQUEST, Gate

PUBLIC, CONTROL = 9092, 9093


def ask(path: str, body: bytes = b"", port: int = PUBLIC, length: int | None = -1, limit: int = 0) -> tuple[int, bytes]:
    """The status that came back, and what the app behind the gate read."""
    seen: list[bytes] = []
    told: list[dict[str, Any]] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append((await receive())["body"])
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def send(part: dict[str, Any]) -> None:
        told.append(part)

    parts = iter([{"body": body[:3], "more_body": True}, {"body": body[3:], "more_body": False}])

    async def receive() -> Any:
        return {"type": "http.request", **next(parts)} if path.endswith("push-messages") else {"body": body}

    said = len(body) if length == -1 else length
    headers = [] if said is None else [(b"content-length", str(said).encode())]
    scope = {"type": "http", "path": path, "server": ("127.0.0.1", port), "headers": headers}
    asyncio.run(Gate(app, CONTROL, limit)(scope, receive, send))
    return told[0]["status"], b"".join(seen)


def announced(pieces: int) -> bytes:
    tree = ObjectTree(object_id="message", children=[ObjectTree(object_id=f"{n}") for n in range(pieces - 1)])
    return PushMessagesRequest(message_object_trees=[tree]).SerializeToString()


def test_from_outside_there_is_only_the_fleet() -> None:
    assert ask("/v1/fleet/pull-messages", b"hello") == (200, b"hello")
    for path in ("/v1/control/start-run", "/v1/runtime/acquire-task", "/docs", "/health", "/", "/v1/fleetless"):
        assert ask(path) == (404, b"")
        assert ask(path, port=CONTROL)[0] == 200


def test_no_request_is_longer_than_a_piece() -> None:
    assert ask("/v1/fleet/push-object", length=REQUEST)[0] == 200
    assert ask("/v1/fleet/push-object", length=REQUEST + 1) == (413, b"")
    assert ask("/v1/fleet/push-object", length=None) == (413, b"")
    assert ask("/v1/fleet/push-object", length=REQUEST + 1, port=CONTROL)[0] == 200


@pytest.mark.parametrize(("pieces", "status"), [(1, 200), (18, 200), (19, 413), (1000, 413)])
def test_a_message_is_refused_by_its_announcement(pieces: int, status: int) -> None:
    """Ten pieces of a message and eight more are let in."""
    body = announced(pieces)
    assert ask("/v1/fleet/push-messages", body, limit=10 * PIECE) == (status, body if status == 200 else b"")


def test_what_is_no_announcement_is_refused() -> None:
    assert ask("/v1/fleet/push-messages", b"\xff\xff\xff\xff", limit=PIECE) == (413, b"")


def test_the_gate_takes_no_torch() -> None:
    """Nor does the process that carries a site's messages, nor a container's check: each would have 200 MB more."""
    for module in ("superlink", "supernode", "health"):
        text = f"import sys, fedtailor.flower.{module}; print('torch' in sys.modules)"
        done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=300, check=True)
        assert done.stdout == "False\n", module
