"""The gate before Flower's SuperLink, an ASGI app before another: what may be asked at which port, and by whom.

flwr 1.41 serves everything at one address, also the Control API, which starts runs and has no login, and it reads a
request whole before it looks whose it is. Here the sites' port answers to the Fleet API alone, to keys that are let in,
and takes no message that is too long. The control port answers to who can read the token in the server's folder; only
Flower's Runtime API has secrets of its own.
"""

import asyncio
import hmac
from base64 import b64decode
from collections.abc import Callable, Collection, Mapping
from typing import Any

from google.protobuf.message import DecodeError
from starlette.responses import Response

from .pieces import PIECE
from .private.wire import (
    FLEET_HTTP_PUBLIC_KEY_HEADER,
    FLEET_HTTP_SIGNATURE_HEADER,
    TIMESTAMP_HEADER,
    PushMessagesRequest,
    bytes_to_public_key,
    iterate_object_tree,
    verify_signature,
)

FLEET, PUSH, RUNTIME = "/v1/fleet/", "/v1/fleet/push-messages", "/v1/runtime/"
REQUEST = PIECE + (1 << 20)  # bytes: a piece of a message and what is around it
BODY = 120.0  # seconds that a site may take to send a request's body
KNOWN = "known"  # in a connection's state, if from outside: what to call once a key is seen that may come in
Keys = Callable[[], Mapping[str, bytes]]  # who may come in


class Gate:
    def __init__(self, app: Any, limit: int, keys: Keys, token: str) -> None:
        self.app, self.keys = app, keys
        self.pieces = 8 + limit // PIECE  # some hold the message, some only name others
        self.authorization = f"Bearer {token}".encode()

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
        elif KNOWN in scope["state"]:
            await self.from_outside(scope, receive, send)
        else:
            await (refusal(401) if self.is_stranger(scope) else self.app)(scope, receive, send)

    def is_stranger(self, scope: dict[str, Any]) -> bool:
        given = dict(scope["headers"]).get(b"authorization", b"")
        return not scope["path"].startswith(RUNTIME) and not hmac.compare_digest(given, self.authorization)

    async def from_outside(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        answer, headers = self.app, dict(scope["headers"])
        if scope["type"] != "http" or not scope["path"].startswith(FLEET):
            answer = refusal(404)
        elif not may_enter(headers, self.keys().values()):
            answer = refusal(401)
        else:
            scope["state"][KNOWN]()
            if int(headers.get(b"content-length", REQUEST + 1)) > REQUEST:
                answer = refusal(413)  # also if it does not tell its length
            else:
                answer, receive = await self.read(scope["path"], receive)
        await answer(scope, receive, send)

    async def read(self, path: str, receive: Any) -> tuple[Any, Any]:
        """What answers to a request of a site, and what gives its body once more."""
        try:
            async with asyncio.timeout(BODY):
                body, again = await read(receive)
        except TimeoutError:
            return refusal(408), receive
        return refusal(413) if path == PUSH and too_many(body, self.pieces) else self.app, again


def refusal(status: int) -> Response:
    """The connection ends with it: what may still come is not read."""
    return Response(status_code=status, headers={"connection": "close"})


def may_enter(headers: Mapping[bytes, bytes], keys: Collection[bytes]) -> bool:
    """Whether a request's time is signed by one of the keys. Whether it is recent, and the node's, Flower asks."""
    try:
        key, signature = (
            b64decode(headers[name.encode()], validate=True)
            for name in (FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER)
        )
        signed = headers[TIMESTAMP_HEADER.encode()]
    except (KeyError, ValueError):
        return False
    return key in keys and verify_signature(bytes_to_public_key(key), signed, signature)


async def read(receive: Any) -> tuple[bytes, Any]:
    """A request's body, and what gives it once more."""
    collected, more = bytearray(), True
    while more:
        part = await receive()  # that it has gone ends it, too
        collected += part.get("body", b"")
        more = part.get("more_body", False)
    body = bytes(collected)
    parts = iter([{"type": "http.request", "body": body, "more_body": False}])

    async def again() -> Any:
        return next(parts, None) or await receive()

    return body, again


def too_many(body: bytes, pieces: int) -> bool:
    try:
        trees = PushMessagesRequest.FromString(body).message_object_trees
    except DecodeError:
        return True
    return sum(1 for tree in trees for _ in iterate_object_tree(tree)) > pieces
