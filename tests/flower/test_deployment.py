"""A federation's folder: who may come in, which runs are asked for, and what is refused before it is asked for."""

from __future__ import annotations

import shutil
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from flwr.proto.node_pb2 import NodeInfo
from inline import inline_engine

from fedtailor.base.errors import UserError
from fedtailor.base.files import FolderLock, is_locked
from fedtailor.base.version import __version__
from fedtailor.cli.arguments import run_of
from fedtailor.flower.app import reply
from fedtailor.flower.client import SiteFolder, find_policy, run_client
from fedtailor.flower.deployment import Deployment
from fedtailor.flower.init import DeploymentConfig, add_client, init
from fedtailor.flower.messages import GridTransport
from fedtailor.flower.server import goes_on, where_to_listen
from fedtailor.flower.status import collect, state_of
from fedtailor.remote.members import Members
from fedtailor.remote.messages import Refusal, decode
from fedtailor.remote.policy import SitePolicy
from fedtailor.runs.checkpoint import ROUNDS
from fedtailor.runs.folder import RunFolder
from fedtailor.runs.server_bytes import server_to_bytes
from fedtailor.simulation.engine import make_engine
from fedtailor.simulation.loop import run_round
from world import world


@pytest.fixture
def deployment(tmp_path: Path) -> Deployment:
    init(tmp_path / "fed", 3, ["127.0.0.1"], 19192, 19193)
    return Deployment(tmp_path / "fed")


def submit(deployment: Deployment, *words: str, name: str | None = None) -> str:
    return deployment.submit(list(words), name, run_of)


def test_a_run_is_asked_for_by_a_file(deployment: Deployment) -> None:
    assert submit(deployment, "promptfl", "rounds=2") == "promptfl-1"
    assert submit(deployment, "promptfl", "rounds=2", "fraction=0.5") == "promptfl-2"
    assert deployment.waiting() == ["promptfl-1", "promptfl-2"]
    run, members = deployment.asked("promptfl-1")
    assert (run.clients, run.fraction, run.engine, run.rounds) == (3, 1.0, "flower", 2)
    assert members == ["client-0", "client-1", "client-2"]
    assert deployment.asked("promptfl-2")[0].fraction == 0.5
    deployment.done("promptfl-1")
    assert deployment.waiting() == ["promptfl-2"]
    assert [(run["name"], run["state"]) for run in collect(deployment)["runs"]] == [("promptfl-2", "waiting")]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["promptfl", "clients=5"], "every site is a client"),
        (["promptfl", "engine=local"], "every site is a client"),
        (["zeroshot"], "trains nothing"),
        (["central"], "gathers everyone's pictures"),
        (["promptfl", "record=drift"], "record looks into clients"),
        (["promptfl", "plan.quorum=2"], "plan.quorum"),
    ],
)
def test_what_cannot_run_is_not_asked_for(deployment: Deployment, words: list[str], told: str) -> None:
    with pytest.raises(UserError, match=told):
        submit(deployment, *words)
    assert deployment.waiting() == []


def test_names(deployment: Deployment) -> None:
    submit(deployment, "promptfl", name="mine")
    for name, told in (("mine", "already"), ("../out", "letters, digits"), ("", "letters, digits")):
        with pytest.raises(UserError, match=told):
            submit(deployment, "promptfl", name=name)


def test_going_on(deployment: Deployment) -> None:
    """Only how lost clients are dealt with may change."""
    submit(deployment, "promptfl", name="mine")
    with pytest.raises(UserError, match="in the queue already"):
        deployment.resume("mine", [])
    run = deployment.asked("mine")[0]
    deployment.done("mine", "client 1 has lost its state")
    assert state_of(deployment, "mine") == "failed"
    with pytest.raises(UserError, match="no run 'mine' to go on with"):
        deployment.resume("mine", [])
    RunFolder.create(deployment.runs / "mine" / "new", run, {})
    toml = (deployment.runs / "mine" / "new" / "run.toml").rename(deployment.runs / "mine" / "run.toml")
    for key in ("lr=0.1", "plan.updates=int8"):
        with pytest.raises(UserError, match="cannot change in the middle"):
            deployment.resume("mine", [key])
    deployment.resume("mine", ["plan.lost=anew"])
    assert deployment.asked("mine")[0].plan.lost == "anew"
    assert state_of(deployment, "mine") == "waiting"
    deployment.done("mine")
    add_client(deployment.root)
    with pytest.raises(UserError, match="began with 3 sites, and there are 4 now"):
        deployment.resume("mine", [])
    Members.first(["client-0", "client-1", "client-2"]).write(deployment.runs / "mine")
    deployment.resume("mine", [])  # then it is known who was there, and the server sees to the rest
    assert deployment.waiting() == ["mine"]
    deployment.done("mine")
    toml.write_text(toml.read_text().replace(f'version = "{__version__}"', 'version = "0.0.7"'))
    with pytest.raises(UserError, match=r"was written by fedtailor 0\.0\.7, this is .*, so go on with that version"):
        deployment.resume("mine", [])
    assert deployment.waiting() == []


def test_a_run_of_another_version(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """One that has no round yet begins anew; what was computed is neither gone on with nor lost."""
    folder = tmp_path / "mine"
    assert not goes_on(folder)
    RunFolder.create(folder, world("fedavg", "head").run, {}).close()
    assert goes_on(folder)
    toml = folder / "run.toml"
    toml.write_text(toml.read_text().replace(f'version = "{__version__}"', 'version = "0.0.7"'))
    (folder / ROUNDS).write_text('{"round": 1}\n')
    before = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    with pytest.raises(UserError, match=r"was written by fedtailor 0\.0\.7"):
        goes_on(folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()} == before
    (folder / ROUNDS).write_text("")
    assert not goes_on(folder)
    assert not folder.exists()
    assert "mine: no round was done yet, so it begins anew" in caplog.text


@pytest.mark.parametrize(
    ("listen", "where"),
    [
        ("0.0.0.0", "0.0.0.0:9092"),
        ("0.0.0.0:443", "0.0.0.0:443"),
        ("::", ":::9092"),
        ("[::]", "[::]:9092"),
        ("[::]:443", "[::]:443"),
        ("2001:db8::7", "2001:db8::7:9092"),
    ],
)
def test_where_to_listen(listen: str, where: str) -> None:
    config = DeploymentConfig(hosts=("fed",), port=9092, control=9093, clients=0)
    assert where_to_listen(listen, config) == where
    with pytest.raises(UserError, match="9093 is the control port, for this machine alone"):
        where_to_listen("192.0.2.7:9093", config)


def test_one_server_a_folder(deployment: Deployment) -> None:
    assert not is_locked(deployment.folder)
    with FolderLock(deployment.folder, "server"):
        assert is_locked(deployment.folder)
        with pytest.raises(UserError, match="another server"), FolderLock(deployment.folder, "server"):
            pass


def test_a_sites_folder(deployment: Deployment, tmp_path: Path) -> None:
    assert SiteFolder.open(deployment.root, 1) == SiteFolder.open(deployment.root / "clients" / "client-1")
    assert SiteFolder.open(deployment.root, 2).server == "127.0.0.1:19192"
    with pytest.raises(UserError, match=r"site\.toml is not there"):
        SiteFolder.open(tmp_path)
    with pytest.raises(UserError, match="is the folder of client 1, not 2"):
        SiteFolder.open(deployment.root / "clients" / "client-1", 2)
    with pytest.raises(UserError, match="there are no images"):
        run_client(SiteFolder.open(deployment.root, 0), f"folder:{tmp_path / 'nowhere'}")


def test_a_sites_policy(deployment: Deployment, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The one that is given, else the one that init handed out; without any, the defaults, and it says so."""
    home = deployment.root / "clients" / "client-1"
    assert find_policy(home) == SitePolicy()
    (tmp_path / "mine.toml").write_text("rounds = 7")
    assert find_policy(home, tmp_path / "mine.toml").rounds == 7
    assert "keeps to" not in caplog.text
    assert find_policy(tmp_path) == SitePolicy()
    assert "keeps to the default policy" in caplog.text
    (home / "policy.toml").write_text("rounds = many")
    for policy in (None, tmp_path / "nowhere.toml"):
        with pytest.raises(UserError, match="is not a readable policy"):
            run_client(SiteFolder.open(home), f"folder:{tmp_path}", policy=policy)


def test_flowers_own_command_tells_the_server_nothing_of_a_site(tmp_path: Path, deployment: Deployment) -> None:
    """Flower sends the text of an exception up; here that is one sentence, whatever it was."""
    home = deployment.root / "clients" / "client-1"
    (home / "policy.toml").write_text("rounds = many")
    for config in ({}, {"home": str(home), "data": f"folder:{tmp_path}"}):
        context: Any = SimpleNamespace(node_config=config)
        with pytest.raises(UserError) as told:
            reply("train.pass", b"", context)
        assert str(told.value) == "this site did not reply; its own log says why"
    (home / "policy.toml").unlink()
    assert decode(reply("train.pass", b"", context))[0] == Refusal(why="unreadable")


@pytest.mark.skipif(not shutil.which("openssl"), reason="no openssl")
def test_a_site_knows_whom_it_replies_to(deployment: Deployment) -> None:
    home = SiteFolder.open(deployment.root, 1)
    told = subprocess.run(
        ["openssl", "x509", "-noout", "-fingerprint", "-sha256", "-in", home.folder / "ca.pem"],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    known = "SHA256:" + told.strip().partition("=")[2].replace(":", "").lower()
    assert home.known_as == f"127.0.0.1:19192, certified by {known}"


class Nodes:
    """A grid that never answers."""

    def __init__(self) -> None:
        self.nodes, self.count = [NodeInfo(node_id=5, public_key=b"k", last_activated_at="1")], 0

    def get_nodes(self) -> list[NodeInfo]:
        return self.nodes

    def push_messages(self, messages: list[Any]) -> list[str]:
        self.count += 1
        return [f"m{self.count}"]

    def pull_messages(self, names: list[str]) -> list[Any]:
        return []


def test_a_node_that_came_in_anew_is_written_to_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedtailor.flower.messages.Message", lambda *given, **more: SimpleNamespace())
    grid: Any = Nodes()
    transport = GridTransport(grid, lambda node: {b"k": 3}.get(node.public_key))
    assert transport.online() == {3}
    transport.send("train.pass", 0, {3: b"message"})
    assert list(transport.receive()) == []
    grid.nodes = [NodeInfo(node_id=5, public_key=b"k", last_activated_at="2")]
    assert transport.online() == {3}
    (arrival,) = transport.receive()
    assert (arrival.client, arrival.gone) == (3, True)
    assert list(transport.receive()) == []
    grid.nodes = [NodeInfo(node_id=6, public_key=b"stranger", last_activated_at="2")]
    assert transport.online() == set()


def test_a_clock_that_jumps_ends_no_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Deadlines go by a clock that nobody sets: two days ahead and back in the middle of rounds change nothing."""
    experiment, other = world("fedavg", "head", rounds=2), world("fedavg", "head", rounds=2)
    jumping, local = inline_engine(experiment, tmp_path), make_engine(other)
    days = iter([0, 2, -2] * 10000)
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + 86400 * next(days))
    jumping.open()
    server = here = experiment.job.first_server()
    for _ in range(2):
        server, _ = run_round(experiment, server, jumping)
        here, _ = run_round(other, here, local)
    assert server_to_bytes(server) == server_to_bytes(here)
    assert not [visit.dropped for visit in jumping.log if visit.dropped]
