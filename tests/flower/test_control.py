"""The control port: Flower's own client is turned away, ours has the token, and who may not read that is told so."""

from __future__ import annotations

import ssl
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from deployed import free_ports
from flwr.proto.control_pb2 import ListNodesRequest, RegisterNodeRequest, StartRunRequest
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.protobuf.constants import PROTOBUF_MEDIA_TYPE
from gated import gated

from fedtailor.base.errors import UserError
from fedtailor.flower.control import control_client, keep_token, read_token
from fedtailor.flower.deployment import Deployment
from fedtailor.flower.gate import RUNTIME
from fedtailor.flower.init import init
from fedtailor.flower.status import collect


@pytest.fixture(scope="module")
def superlink() -> Any:
    """Flower's own app, with a state that is gone with it."""
    with warnings.catch_warnings(action="ignore"):
        from flwr.superlink.main import create_app

        app = create_app()
    app.state.superexec_auth_secret = b"what fedtailor flower server gives it"
    return app


@pytest.fixture
def deployment(tmp_path: Path, superlink: Any) -> Iterator[Deployment]:
    """With a gate before Flower's app, in a thread of this process."""
    port, control = free_ports(2)
    init(tmp_path / "fed", 1, ["127.0.0.1"], port, control)
    made = Deployment(tmp_path / "fed")
    keep_token(made.token)
    with gated(superlink, made.root, made.sites, read_token(made.token), port, control):
        yield made


@pytest.mark.filterwarnings("default")
def test_flowers_own_client_is_turned_away_and_ours_is_not(deployment: Deployment) -> None:
    with ControlHttpClient.from_server_address(deployment.control, False, deployment.certificate, []) as stranger:
        for ask in (
            lambda: stranger.ListNodes(ListNodesRequest()),
            lambda: stranger.StartRun(StartRunRequest()),
            lambda: stranger.RegisterNode(RegisterNodeRequest(public_key=b"mine")),
        ):
            with pytest.raises(httpx.HTTPStatusError, match="401"):
                ask()
    with control_client(deployment) as ours:
        assert list(ours.ListNodes(ListNodesRequest()).nodes_info) == []
    assert deployment.token.stat().st_mode & 0o777 == 0o600


@pytest.mark.filterwarnings("default")
def test_nothing_is_open_without_the_token_but_what_flower_guards(deployment: Deployment, superlink: Any) -> None:
    """Every route that Flower's app has, and one that it has not."""
    paths = {path for path in superlink.openapi()["paths"] if "{" not in path} | {"/docs", "/openapi.json", "/other"}
    assert any(path.startswith(RUNTIME) for path in paths)
    root = deployment.folder / "ca.pem"
    trusted = ssl.create_default_context(cafile=str(root))
    with httpx.Client(base_url=f"https://{deployment.control}", verify=trusted) as client:
        for path in sorted(paths):
            told = client.post(path, headers={"content-type": PROTOBUF_MEDIA_TYPE}).status_code
            assert told in ((401, 403) if path.startswith(RUNTIME) else (401,)), path


def test_a_server_that_does_not_take_the_token_is_told_of(deployment: Deployment) -> None:
    deployment.token.write_text("another")
    with pytest.raises(UserError, match=r"does not take the token of .*fed \(401\); it is another federation's"):
        collect(deployment)


def test_who_may_not_read_the_token_is_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert read_token(tmp_path / "token") == ""
    keep_token(tmp_path / "token")
    made = read_token(tmp_path / "token")
    (tmp_path / "token").chmod(0o644)  # as after a careless copy
    keep_token(tmp_path / "token")
    assert read_token(tmp_path / "token") == made
    assert len(made) == 64
    assert (tmp_path / "token").stat().st_mode & 0o777 == 0o600

    def denied(*_: Any, **__: Any) -> str:
        raise PermissionError

    monkeypatch.setattr(Path, "read_text", denied)
    with pytest.raises(UserError, match="token is not for this account; ask as the one that the server runs under"):
        read_token(tmp_path / "token")
