"""The control port, on the server's machine: who can read the token in the deployment's folder may list and start."""

import secrets
from pathlib import Path

import httpx

from ..base.errors import UserError
from ..base.files import write_atomic
from .deployment import Deployment
from .private.control import (
    ControlHttpClient,
    ProtobufCall,
    ProtobufClientInterceptor,
    ProtobufRequestContext,
    RuntimeVersionHttpInterceptor,
)


class WithToken:
    """What Flower's client sends, with the token in its heads."""

    def __init__(self, token: str) -> None:
        self.token = token

    def intercept(self, context: ProtobufRequestContext, call_next: ProtobufCall) -> httpx.Response:
        context.request.headers["authorization"] = f"Bearer {self.token}"
        return call_next(context)


def keep_token(path: Path) -> None:
    """Made once, for the eyes of the server's account only, however the file came here."""
    write_atomic(path, (read_token(path) or secrets.token_hex(32)).encode(), private=True)


def read_token(path: Path) -> str:
    """Empty where no server has been started yet."""
    try:
        return path.read_text() if path.exists() else ""
    except PermissionError as error:
        raise UserError(f"{path} is not for this account; ask as the one that the server runs under") from error


def control_client(deployment: Deployment) -> ControlHttpClient:
    interceptors: list[ProtobufClientInterceptor] = [
        RuntimeVersionHttpInterceptor(component_name="flwr CLI"),
        WithToken(read_token(deployment.token)),
    ]
    return ControlHttpClient.from_server_address(deployment.control, False, deployment.certificate, interceptors)
