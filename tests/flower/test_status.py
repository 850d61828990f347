"""What a server tells of itself: the board, status from it, /health and /metrics, and the log of who came and went."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from flwr.proto.node_pb2 import NodeInfo

from fedtailor.base.version import __version__
from fedtailor.cli import watching
from fedtailor.flower import status
from fedtailor.flower.attendance import Attendance
from fedtailor.flower.board import FILE, Board, RunState, now
from fedtailor.flower.deployment import Deployment
from fedtailor.flower.gate import KNOWN
from fedtailor.flower.health import Told, health, metrics
from fedtailor.flower.init import init
from fedtailor.flower.server import Coordinator
from fedtailor.flower.watch import RunWatch
from fedtailor.remote.messages import Refusal, encode
from remote import Fault, RemoteWorld, says
from world import world

CONTROL, PUBLIC = 19193, 19192
SITES = ("client-0", "client-1", "client-2")


@pytest.fixture
def deployment(tmp_path: Path) -> Deployment:
    init(tmp_path / "fed", 3, ["127.0.0.1"], PUBLIC, CONTROL)
    return Deployment(tmp_path / "fed")


def board(**run: Any) -> Board:
    state = RunState(**{"name": "mine", "began": now(), "round": 3, "rounds": 10, "round_began": now(), **run})
    return Board(at=now(), began=now(), version="1.2", sites={"a": True, 'b"\\': False}, run=state)


# --- the board --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", [None, b"", b"{", b"[]", b'{"at": 3}'])
def test_a_board_that_is_not_whole_is_none(damage: bytes | None, tmp_path: Path) -> None:
    board().write(tmp_path)
    assert Board.read(tmp_path) is not None
    (tmp_path / FILE).unlink() if damage is None else (tmp_path / FILE).write_bytes(damage)
    assert Board.read(tmp_path) is None


def test_a_board_that_cannot_be_written_ends_nothing(tmp_path: Path) -> None:
    board().write(tmp_path / "nowhere")
    assert Board.read(tmp_path / "nowhere") is None


# --- /health and /metrics ---------------------------------------------------------------------------------------------


def get(folder: Path, path: str, outside: bool = False, method: str = "GET") -> tuple[int, str]:
    told: list[dict[str, Any]] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 404, "headers": []})
        await send({"type": "http.response.body", "body": b"not ours"})

    async def send(part: dict[str, Any]) -> None:
        told.append(part)

    scope = {"type": "http", "path": path, "method": method, "state": {KNOWN: None} if outside else {}}
    asyncio.run(Told(Told(app, "/metrics", metrics, folder), "/health", health, folder)(scope, None, send))
    return told[0]["status"], told[1]["body"].decode()


def test_health(tmp_path: Path) -> None:
    assert get(tmp_path, "/health") == (503, '{"status": "starting"}')
    board(doing="training").write(tmp_path)
    code, text = get(tmp_path, "/health")
    found = json.loads(text)
    assert (code, found["status"], found["version"]) == (200, "up", "1.2")
    assert found["run"] == {"name": "mine", "round": 3, "rounds": 10, "doing": "training"}
    assert 0 <= found["age"] < 60


def test_they_are_not_told_outside(tmp_path: Path) -> None:
    board().write(tmp_path)
    for path in ("/health", "/metrics"):
        assert get(tmp_path, path)[0] == 200
        assert get(tmp_path, path, outside=True) == (404, "not ours")
        assert get(tmp_path, path, method="POST") == (404, "not ours")
    assert get(tmp_path, "/healthy") == (404, "not ours")


def test_metrics_are_as_prometheus_reads_them(tmp_path: Path) -> None:
    """Each with its help and type; what is in a name is escaped."""
    assert get(tmp_path, "/metrics") == (200, "")
    board(answered=("a",), awaited=("b", "c")).write(tmp_path)
    lines = get(tmp_path, "/metrics")[1].splitlines()
    values = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    assert values['fedtailor_site_online{site="a"}'] == "1"
    assert values['fedtailor_site_online{site="b\\"\\\\"}'] == "0"
    assert values['fedtailor_round{run="mine"}'] == "3"
    assert values['fedtailor_rounds{run="mine"}'] == "10"
    assert values['fedtailor_sites_answered{run="mine"}'] == "1"
    assert values['fedtailor_sites_awaited{run="mine"}'] == "2"
    assert values['fedtailor_info{version="1.2"}'] == "1"
    typed = {line.split()[2] for line in lines if line.startswith("# TYPE")}
    assert typed == {name.partition("{")[0] for name in values}
    Board(at=now(), began=now(), version="1.2").write(tmp_path)
    assert "fedtailor_round" not in get(tmp_path, "/metrics")[1]


# --- who is there -----------------------------------------------------------------------------------------------------


class Control:
    """Sites by name, with their states."""

    def __init__(self, deployment: Deployment, **states: str) -> None:
        self.deployment, self.states, self.came = deployment, states, "2026-11-01T00:00:00"

    def ListNodes(self, request: object) -> Any:  # noqa: N802  # as Flower calls it
        keys = self.deployment.sites()
        nodes = [
            NodeInfo(
                node_id=n,
                public_key=keys[name.replace("_", "-")],
                status=state,
                last_activated_at=self.came,
                last_deactivated_at="2026-11-02T00:00:00" if state == "offline" else "",
            )
            for n, (name, state) in enumerate(self.states.items())
            if name.replace("_", "-") in keys
        ]
        return SimpleNamespace(nodes_info=nodes)


def attendance(deployment: Deployment, **states: str) -> tuple[Attendance, Control]:
    control: Any = Control(deployment, **states)
    return Attendance(deployment, control), control


def test_who_is_lost_and_who_comes_back_is_logged(deployment: Deployment, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    who, control = attendance(deployment, client_0="online", client_1="online", client_2="registered")
    who.look()
    assert caplog.messages == []
    control.states |= {"client_1": "offline", "client_2": "online"}
    who.look()
    assert caplog.messages == ["lost: client-1", "online: client-2"]
    who.note(["client-1"], ["client-0", "client-1"])
    assert caplog.messages[2:] == ["lost: client-0", "online again: client-1"]
    assert who.online == {"client-1", "client-2"}


def test_who_takes_part(deployment: Deployment, caplog: pytest.LogCaptureFixture) -> None:
    """Members stay while their keys do and they are not away for long; others join once they are online."""
    who, control = attendance(deployment, client_0="online", client_1="offline", client_2="offline")
    run = world("fedavg", "head").run
    assert who.there(run, SITES[:2]) == ["client-0", "client-1"]
    control.states["client_2"] = "online"
    assert who.there(run, SITES[:2]) == [*SITES]
    who.began -= 90_000
    assert who.there(run, SITES[:2]) == ["client-0", "client-2"]
    never = world("fedavg", "head", **{"plan.away": 0}).run
    assert who.there(never, SITES[:2]) == [*SITES]
    once = world("fedavg", "head", labels="zeroshot", **{"plan.away": 0}).run
    caplog.set_level(logging.INFO)
    assert who.there(once, SITES[:2]) == ["client-0", "client-1"]
    assert who.there(once, SITES[:2]) == ["client-0", "client-1"]
    assert caplog.text.count("client-2 must wait for the next run: labels=zeroshot labels pictures once") == 1
    (deployment.folder / "keys" / "client-0.pub").unlink()
    assert who.there(never, SITES[:2]) == ["client-1", "client-2"]
    others = world("fedavg", "head", privacy="gaussian", **{"privacy.against": "others"}).run
    assert who.there(others, SITES[:2]) == ["client-0", "client-1"]


def test_who_could_not_join_may_try_again_once_it_has_come_anew(deployment: Deployment) -> None:
    who, control = attendance(deployment, client_0="online", client_1="online")
    run = world("fedavg", "head").run
    assert who.there(run, SITES[:1]) == ["client-0", "client-1"]
    who.refuse({"client-1": "its policy does not allow this method"})
    assert who.there(run, SITES[:1]) == ["client-0"]
    for day in (3, 4):
        control.came = f"2026-11-{day:02}T00:00:00"
        assert who.there(run, SITES[:1]) == ["client-0", "client-1"]
        who.refuse({"client-1": "its policy does not allow this method"})
    control.came = "2026-11-05T00:00:00"
    assert who.there(run, SITES[:1]) == ["client-0"], "three times are enough"


def test_a_key_that_was_taken_away(deployment: Deployment) -> None:
    who, _ = attendance(deployment)
    assert who.taken_away(SITES) == set()
    (deployment.folder / "keys" / "client-1.pub").unlink()
    assert who.taken_away(SITES) == {"client-1"}
    assert who.taken_away(SITES) == set(), "told once"


# --- a run under way --------------------------------------------------------------------------------------------------


def test_a_run_is_watched(deployment: Deployment, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What it does, who has answered and who is awaited, at each look; its start says for whom it waits."""
    caplog.set_level(logging.INFO)
    who, _ = attendance(deployment)
    told: list[tuple[RunState, dict[str, str]]] = []
    done: list[int] = []
    names = ["north", "east", "south", "west"]
    watch = RunWatch("mine", names, 2, 5, who, lambda state, versions: told.append((state, versions)), done.append)
    watch.told_at -= 60
    there = RemoteWorld(world("fedavg", "head", fraction=1.0, **{"plan.quorum": 0.5, "plan.grace": 1.0}), tmp_path)
    there.transport.away = {1: 1e9}
    engine = there.engine()
    engine.watch = watch.look
    engine.open()
    assert "mine: goes on after round 2 of 5" in caplog.messages
    assert "mine: 0 of 4 sites are ready; waiting for east, west, north, south" in caplog.messages
    first, last = told[0][0], told[-1]
    assert (first.doing, first.round, first.awaited) == ("getting ready", 2, tuple(names))
    assert (set(last[0].answered), last[0].awaited) == ({"north", "south", "west"}, ("east",))
    assert last[1] == dict.fromkeys(["north", "south", "west"], __version__)
    assert who.online == {"north", "south", "west"}


def test_sites_of_another_version_are_told_of_once(
    deployment: Deployment, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """By name, with both versions; they are there, if of no use."""
    who, _ = attendance(deployment)
    told: list[dict[str, str]] = []
    names = ["north", "east", "south", "west"]
    watch = RunWatch("mine", names, 0, 5, who, lambda state, versions: told.append(versions), lambda done: None)
    there = RemoteWorld(world("fedavg", "head", fraction=1.0, **{"plan.quorum": 0.5, "plan.grace": 1.0}), tmp_path)
    refusal = encode(Refusal(why="version", version="0.0.7"))
    there.transport.faults = [Fault(says(lambda data: refusal), client=1, kind="query.invite")]
    engine = there.engine()
    engine.watch = watch.look
    engine.open()
    sentence = f"mine: east has fedtailor 0.0.7, this server {__version__}: upgrade it"
    assert caplog.messages.count(sentence) == 1
    assert told[-1]["east"] == "0.0.7"
    assert who.online == {*names}


def test_what_a_site_had_says_nothing_once_it_has_left(deployment: Deployment) -> None:
    """Broken: a site that came back upgraded, while no run was under way, was still to be upgraded."""
    who, control = attendance(deployment, client_0="online", client_1="online")
    server = Coordinator.__new__(Coordinator)
    server.deployment, server.attendance, server.began, server.versions = deployment, who, now(), {}

    def told(**versions: str) -> dict[str, str]:
        who.look()
        server.publish(versions={name.replace("_", "-"): version for name, version in versions.items()})
        made = Board.read(deployment.folder)
        assert made is not None
        return made.versions

    assert told(client_0="0.0.7", client_1="1.2") == {"client-0": "0.0.7", "client-1": "1.2"}
    control.states["client_0"] = "offline"
    assert told() == {"client-1": "1.2"}
    control.states["client_0"] = "online"
    assert told() == {"client-1": "1.2"}


def test_status_says_whom_to_upgrade(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the version of the server that is up, not of the command."""
    monkeypatch.setattr(status, "control_client", lambda deployment: Control(deployment, client_0="online"))
    monkeypatch.setattr(status, "is_locked", lambda folder: True)
    versions = {"client-0": "0.0.7", "client-1": "1.2", "client-2": "1.3"}
    board().model_copy(update={"versions": versions}).write(deployment.folder)
    found = status.collect(deployment)
    assert found["warnings"] == [
        "client-0 has fedtailor 0.0.7, this server 1.2: upgrade it",
        "client-2 has fedtailor 1.3, this server 1.2: upgrade the server",
    ]
    monkeypatch.setattr(watching, "watched", lambda deployment: iter([found, found]))
    watching.show(deployment, as_json=False)
    assert capsys.readouterr().out.splitlines()[1:3] == found["warnings"], "once, in a pipe"


def test_status_tells_round_time_and_who_is_awaited(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Five rounds of 2 s are done, and this one has begun just now: about ten more."""
    control = Control(deployment, client_0="online", client_1="offline")
    monkeypatch.setattr(status, "control_client", lambda deployment: control)
    monkeypatch.setattr(status, "is_locked", lambda folder: True)
    folder = deployment.runs / "mine"
    folder.mkdir()
    rows = [{"round": t + 1, "seconds": 2.0, "global": None, "dropped": {}} for t in range(5)]
    (folder / "rounds.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (deployment.queue / "mine.toml").write_text("")
    more = {"doing": "training", "answered": ("client-0",), "awaited": ("client-1", "client-2"), "round": 6}
    board(**more).model_copy(update={"versions": {"client-0": "1.2"}}).write(deployment.folder)
    found = status.collect(deployment)
    (run,) = found["runs"]
    assert (run["round"], run["of"], run["doing"]) == (6, 10, "training")
    assert 10 <= run["elapsed"] < 12
    assert 8 < run["left"] <= 10
    assert [(it["seen"][:10], it["version"]) for it in found["sites"][1:]] == [("2026-11-02", ""), ("", "")]
    assert found["sites"][0]["version"] == "1.2"
    line = "mine: training, round 6 of 10; 1 answered, waiting for client-1, client-2"
    assert status.progress_of(run) == line

    looks = iter([found, found, {**found, "runs": [{**run, "awaited": []}]}])
    monkeypatch.setattr(watching, "watched", lambda deployment: looks)
    watching.show(deployment, as_json=False)
    told = capsys.readouterr().out.splitlines()
    assert told[0] == f"server up, port {PUBLIC}, fedtailor 1.2; 1 of 3 sites online"
    assert [it.partition("; 0:")[0] for it in told[1:]] == [line, line.partition(", waiting")[0]]
    looks = iter([found])
    watching.show(deployment, as_json=True)
    assert json.loads(capsys.readouterr().out) == found


def test_the_start_is_followed(deployment: Deployment) -> None:
    board(round=0, doing="getting ready", answered=("client-0",), awaited=("client-2", "client-1")).write(
        deployment.folder
    )
    assert status.stage(deployment, "mine", 9) == ("mine: waiting for client-1, client-2", 1, 3)
    assert status.stage(deployment, "other", 9) == ("other: round", 0, 9)
