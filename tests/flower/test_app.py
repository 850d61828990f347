"""What `flwr run` does: ServerApp and ClientApp over a Grid, on sites with homes of their own, and in a simulation."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from deployed import SITES, SMALL, write_data
from flwr.app import Context, Error, RecordDict, UserConfig
from flwr.common.constant import ErrorCode
from flwr.proto.node_pb2 import NodeInfo
from inline import InlineGrid

import fedtailor
from conftest import Call
from fedtailor.base.errors import UserError
from fedtailor.client.codec import client_to_bytes
from fedtailor.flower import app, conduct
from fedtailor.flower.messages import GridTransport, wrap
from fedtailor.remote.audit import read_lines
from fedtailor.remote.client import StateFiles
from fedtailor.runs.folder import RunFolder
from fedtailor.runs.server_bytes import server_to_bytes
from fedtailor.simulation.loop import RoundRecord

NOTHING = {"settings": "", "runs-dir": "", "run": "", "resume": ""}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_data(tmp_path_factory.mktemp("sites"))


@pytest.fixture(autouse=True)
def as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An app has its process to itself."""
    monkeypatch.setattr(sys, "tracebacklimit", 1000, raising=False)
    monkeypatch.setattr(conduct, "QUIET", 0.01)
    ours = logging.getLogger("fedtailor")
    before = [*ours.handlers]
    yield
    ours.handlers, ours.level = before, logging.NOTSET


class SitesGrid(InlineGrid):
    """Nodes that were started with a home and pictures."""

    def __init__(self, homes: Path, data: Path) -> None:
        super().__init__(app.client, SITES)
        self.homes, self.data = homes, data

    def config(self, client: int) -> UserConfig:
        home, pictures = self.homes / f"home-{client}", self.data / f"site-{client}"
        return {"home": str(home), "data": f"folder:{pictures}", "partition-id": client}


def line(method: str, settings: Mapping[str, object], **more: object) -> str:
    return " ".join([method, *(f"'{key}={value}'" for key, value in {**settings, **more}.items())])


def words(data: Path, method: str) -> str:
    return line(method, SMALL, data=f"folder:{data / 'server'}")


def conducted(grid: InlineGrid, runs: Path, **config: str) -> None:
    grid.run_config = {**NOTHING, "runs-dir": str(runs), **config}
    app.server(grid, Context(1, 1, {}, RecordDict(), grid.run_config))


def bits(folder: Path) -> bytes:
    saved = RunFolder(folder).resume()
    assert saved is not None
    return server_to_bytes(saved[0])


def same(here: Path, there: Path, homes: Path) -> None:
    """Server, every site's state and every round's numbers."""
    ours, theirs = RunFolder(here).resume(), RunFolder(there).resume()
    assert ours is not None
    assert theirs is not None
    assert bits(here) == bits(there)
    run = (there / "id").read_text()
    for k, client in ours[1].items():
        ledger = theirs[1][k]
        held = StateFiles(homes / f"home-{k}" / "state" / run).read(ledger.version, ledger.state_id)
        assert client_to_bytes(replace(held, state_id="")) == client_to_bytes(client)
    (near, far) = (
        [json.loads(line) for line in (at / "rounds.jsonl").read_text().splitlines()] for at in (here, there)
    )
    assert [row["bytes_up"] for row in near] == [row["bytes_up"] for row in far]
    assert near[-1]["global"]["overall"] == far[-1]["global"]["overall"]
    assert [*near[-1]["clients"].values()] == [*far[-1]["clients"].values()]
    assert (there / "model" / "model.json").is_file()


@pytest.mark.parametrize("method", ["capt", "fedpurel", "fedcopl"])
def test_an_app_equals_one_process(method: str, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped after two rounds, and gone on with from its folder."""
    grid = SitesGrid(tmp_path, data)
    monkeypatch.setattr(conduct.RoundLog, "on_round", stop_after(2))
    with pytest.raises(InterruptedError):
        conducted(grid, tmp_path / "runs", settings=words(data, method), run="mine")
    monkeypatch.undo()
    conducted(SitesGrid(tmp_path, data), tmp_path, resume=str(tmp_path / "runs" / "mine"))
    own = {"data": f"csv:{data / 'sites.csv'}", "data.partition": "site", "clients": SITES, "fraction": 1.0}
    fedtailor.run(method, {**SMALL, **own}, out=tmp_path / "here")
    same(tmp_path / "here", tmp_path / "runs" / "mine", tmp_path)
    first, *_ = read_lines(tmp_path / "home-1" / "state" / "audit")
    assert (first.facts["order"], first.facts["what"], first.facts["bytes"]) == ("who", "client number", 1)


def stop_after(rounds: int) -> Any:
    def on_round(self: object, record: RoundRecord, total: int) -> None:
        if record.round == rounds:
            raise InterruptedError

    return on_round


def test_a_simulation_by_flower_equals_one_process(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its settings say who has which pictures; there are as many clients as nodes."""
    monkeypatch.setattr(app, "simulated", lambda: True)
    monkeypatch.setattr(conduct, "InMemoryGrid", InlineGrid)
    settings = {**SMALL, "data": f"csv:{data / 'sites.csv'}", "data.partition": "site"}
    conducted(InlineGrid(app.client, SITES), tmp_path, settings=line("promptfl", settings))
    fedtailor.run("promptfl", {**settings, "clients": SITES}, out=tmp_path / "here")
    assert bits(tmp_path / "here") == bits(tmp_path / "flower-1")
    assert (tmp_path / "flower-1" / "clients" / "client-2" / "audit").is_dir()
    with pytest.raises(UserError, match=r"clients=5, and Flower simulates 3; .* --federation-config num-supernodes=5"):
        conducted(InlineGrid(app.client, SITES), tmp_path, settings=line("promptfl", settings, clients=5), run="five")


def test_what_a_node_says_of_itself_makes_no_simulation(tmp_path: Path) -> None:
    """Or a server could name the folders of a site that are read."""
    context = Context(1, 1, {"partition-id": 0, "num-partitions": 2}, RecordDict(), {**NOTHING, "runs-dir": "."})
    for kind in ("query.who", "query.invite", "train.pass"):
        with pytest.raises(UserError, match="this site did not reply; its own log says why"):
            app.reply(kind, b"", context)


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({"settings": "fedprx"}, "did you mean 'fedprox'"),
        ({"settings": "capt 'lr=1"}, "cannot be read: No closing quotation"),
        ({"settings": "capt engine=local"}, "clients are reached over Flower"),
        ({"settings": "zeroshot"}, "trains nothing"),
        ({"settings": "capt", "run": "../out"}, "a run's name has letters"),
        ({"settings": "capt", "run": "there"}, 'go on with resume="/.*/there", or choose another run='),
        ({"resume": "nowhere"}, "is not a run folder"),
    ],
)
def test_what_cannot_run_is_told_in_a_sentence(config: dict[str, str], told: str, data: Path, tmp_path: Path) -> None:
    """And in no traceback, which Flower would print."""
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "run.toml").touch()
    with pytest.raises(UserError, match=told) as error:
        conducted(SitesGrid(tmp_path, data), tmp_path, **config)
    assert sys.tracebacklimit == 0
    assert error.value.__suppress_context__


def test_an_app_of_another_make_is_told_of(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no resume, run, runs-dir, settings in this app"):
        app.folder_of(Context(1, 1, {}, RecordDict(), {}))


def test_no_nodes(tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conduct, "START", 0.1)
    with pytest.raises(UserError, match="no SuperNode has come within 0 s; start them"):
        conducted(InlineGrid(app.client, 0), tmp_path, settings=words(data, "capt"))


class Nodes:
    """A grid whose nodes say what they are told to, of whom they are."""

    def __init__(self, said: dict[int, bytes | Error]) -> None:
        self.said, self.since = said, dict.fromkeys(said, "1")
        self.sent: dict[str, tuple[int, str]] = {}
        self.messages: list[tuple[int, str]] = []

    def get_nodes(self) -> list[NodeInfo]:
        return [NodeInfo(node_id=node, last_activated_at=since) for node, since in self.since.items()]

    def push_messages(self, messages: list[Any]) -> list[str]:
        for message in messages:
            self.messages.append((message.node, message.kind))
            self.sent[f"m{len(self.messages)}"] = self.messages[-1]
        return [*self.sent][-len(messages) :]

    def pull_messages(self, names: list[str]) -> list[Any]:
        asked = {name: self.said[self.sent[name][0]] for name in names if self.sent[name][1] == "query.who"}
        return [answered(name, said) for name, said in asked.items()]


def answered(name: str, said: bytes | Error) -> Any:
    wrong = isinstance(said, Error)
    return SimpleNamespace(
        metadata=SimpleNamespace(reply_to_message_id=name), has_error=lambda: wrong, error=said,
        content=None if wrong else wrap(said),  # type: ignore[arg-type]
    )  # fmt: skip


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "fedtailor.flower.messages.Message",
        lambda content, node, kind, **more: SimpleNamespace(node=node, kind=kind),
    )


def looked(transport: GridTransport) -> set[int]:
    transport.online()
    assert list(transport.receive()) == []
    return set(transport.online())


@pytest.mark.usefixtures("plain")
def test_nodes_say_who_they_are(caplog: pytest.LogCaptureFixture) -> None:
    """Whatever they say. Of two that say the same, the first is sent to while it is there."""
    raised = Error(code=ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason="no home")
    away = Error(code=ErrorCode.NODE_UNAVAILABLE, reason="away")
    grid: Any = Nodes({1: b"0", 2: b"0", 3: b"two", 4: b"1" * 4000, 5: raised, 6: away, 7: b"1"})
    transport = GridTransport(grid)
    assert looked(transport) == {0, 1}
    assert "SuperNode 2 says that it is client 0, as another does that is online" in caplog.text
    for node, why in ((3, "'two'"), (4, "more than the 0 allowed"), (5, "no home"), (6, "away")):
        assert f"SuperNode {node} did not say which client it is ({why}" in caplog.text.replace(
            "a message of 0 MB, ", ""
        ).replace("invalid literal for int() with base 10: b", "")
    transport.send("train.pass", 0, {0: b"", 1: b""})
    assert grid.messages[-2:] == [(1, "train.pass"), (7, "train.pass")]
    assert [node for node, kind in grid.messages if kind == "query.who"].count(6) == 2  # asked again; others are not
    assert [node for node, kind in grid.messages if kind == "query.who"].count(5) == 1
    del grid.since[1]
    assert looked(transport) == {0, 1}
    transport.send("train.pass", 0, {0: b""})
    assert grid.messages[-1] == (2, "train.pass")


@pytest.mark.usefixtures("plain")
def test_a_node_that_came_in_anew_is_asked_and_sent_to_again() -> None:
    grid: Any = Nodes({1: b"0"})
    transport = GridTransport(grid)
    assert looked(transport) == {0}
    transport.send("train.pass", 0, {0: b""})
    assert list(transport.receive()) == []
    grid.since[1] = "2"
    assert transport.online() == {0}
    (arrival,) = transport.receive()
    assert (arrival.client, arrival.gone) == (0, True)
    assert grid.messages[-1] == (1, "query.who")


def test_the_folder(tmp_path: Path, call: Call) -> None:
    """It is written whole, and over nothing."""
    assert call("flower", "app", "mine").code == 0
    assert {path.name for path in (tmp_path / "mine").rglob("*")} == {
        "pyproject.toml", "README.md", "fedtailor_app", "__init__.py",
    }  # fmt: skip
    assert "$version" not in (tmp_path / "mine" / "README.md").read_text()
    again = call("flower", "app", "mine")
    assert (again.code, "mine is not an empty folder" in again.err) == (2, True)
    (tmp_path / "file").touch()
    assert "cannot make the folder" in call("flower", "app", "file/mine").err


@pytest.mark.parametrize(("before", "kept"), [("", False), ("import flwr.app", True)])
def test_flowers_own_commands_keep_their_home(before: str, kept: bool, tmp_path: Path) -> None:
    """They import the app, and read their settings afterwards."""
    told = "import os, fedtailor.flower; print(os.environ.get('FLWR_HOME', ''))"
    environment = {key: value for key, value in os.environ.items() if key != "FLWR_HOME"}
    done = subprocess.run(
        [sys.executable, "-c", f"{before}\n{told}"], env=environment, capture_output=True, text=True, check=True
    )
    assert (done.stdout.strip() == "") == kept
