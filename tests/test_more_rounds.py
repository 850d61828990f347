"""A run that is made longer is the run that it would have been."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import fedtailor
from conftest import Call
from fedtailor.base.errors import UserError
from fedtailor.methods import METHODS
from fedtailor.runs.folder import RunFolder
from fedtailor.runs.server_bytes import server_to_bytes
from world import BRIEF, SMALL

PARAMS = {
    "promptfl": {},
    "fedprox": {},
    "scaffold": {"local.momentum": 0.0},
    "fedotp": {},
    "fedpgp": {},
    "local": {},
    "central": {},
    "clip-lora": {"tuner.dropout": 0.1},
    "fedcopl": BRIEF["fedcopl"],
    "fedavg-released": {},
    "capt": {"method.last": False},
    "fedloge": {**BRIEF["fedloge"], **SMALL["resnet"]},
    "kgcoop": {"server": "fedadam", "rebalance": "fedgrab"},
    "tailor": {"labels": "fpl", "labels.refresh": 2, "engine": "posted"},
}


def content(folder: Path) -> tuple[bytes, dict[int, dict[str, dict[str, list[Any]]]]]:
    """The server's state as bytes, and the clients' as numbers."""
    server, clients = RunFolder(folder).saved()
    parts = ("local", "memory", "tuned")
    kept = {k: {p: {n: v.tolist() for n, v in getattr(clients[k], p).items()} for p in parts} for k in clients}
    return server_to_bytes(server), kept


def rows(folder: Path) -> list[dict[str, Any]]:
    timed = {"seconds", "peak_rss_mb"}
    return [{key: value for key, value in row.items() if key not in timed} for row in RunFolder(folder).rounds()]


@pytest.mark.parametrize("method", list(PARAMS))
def test_longer_equals_straight(method: str, small: dict[str, Any], tmp_path: Path) -> None:
    """Broken: four rounds at once and two that are made four come to different numbers."""
    settings = {**small, **PARAMS[method]}
    straight = fedtailor.run(method, {**settings, "rounds": 4}, out=tmp_path / "straight")
    fedtailor.run(method, {**settings, "rounds": 2}, out=tmp_path / "longer")
    longer = fedtailor.resume(tmp_path / "longer", rounds=4)
    assert rows(tmp_path / "longer") == rows(tmp_path / "straight")
    assert content(tmp_path / "longer") == content(tmp_path / "straight")
    assert (longer.summary["rounds"], longer.run) == (4, straight.run)
    assert longer.summary["global"] == straight.summary["global"]
    again = fedtailor.resume(tmp_path / "longer")
    assert again.summary == longer.summary


class Stopping(fedtailor.Callback):
    def on_round(self, record: Any, rounds: int) -> None:
        raise KeyboardInterrupt


@pytest.mark.parametrize(("planned", "asked"), [(2, 4), (6, 4)])
@pytest.mark.parametrize("method", ["capt", "fedpurel"])
def test_before_its_end(method: str, planned: int, asked: int, small: dict[str, Any], tmp_path: Path) -> None:
    """Broken: where only the last rounds are unlike the others, a run that has done none of them is refused, or ends as
    if it had the other number."""
    settings = {**small, **BRIEF.get(method, {})}
    fedtailor.run(method, {**settings, "rounds": asked}, out=tmp_path / "straight")
    with pytest.raises(KeyboardInterrupt):
        fedtailor.run(method, {**settings, "rounds": planned}, out=tmp_path / "longer", callback=Stopping())
    fedtailor.resume(tmp_path / "longer", rounds=asked)
    assert rows(tmp_path / "longer") == rows(tmp_path / "straight")
    assert content(tmp_path / "longer") == content(tmp_path / "straight")


@pytest.mark.parametrize(
    ("method", "told"),
    [
        ("capt", "of capt's rounds the last 1 are unlike the others"),
        ("rucr", "of rucr's rounds the last 2 are unlike the others"),
        ("fedpurel", "of fedpurel's rounds those after round 3 are unlike the others"),
    ],
)
def test_after_its_end(method: str, told: str, small: dict[str, Any], tmp_path: Path) -> None:
    """Broken: a run is made longer that has done what is only done at the end; or a refusal changes something."""
    more = {**BRIEF.get(method, {}), **(SMALL["resnet"] if method == "rucr" else {})}
    fedtailor.run(method, {**small, **more}, out=tmp_path / "mine")
    before = {path: path.read_bytes() for path in (tmp_path / "mine").rglob("*") if path.is_file()}
    with pytest.raises(UserError, match=told):
        fedtailor.resume(tmp_path / "mine", rounds=5)
    assert {path: path.read_bytes() for path in (tmp_path / "mine").rglob("*") if path.is_file()} == before
    assert fedtailor.resume(tmp_path / "mine", rounds=3).summary["rounds"] == 3  # as many as it has


def test_who_reads_how_many_rounds_there_are_says_so() -> None:
    """Broken: a method's rounds depend on their number, and nothing keeps its runs from being made longer."""
    import inspect

    for name, entry in METHODS.items():
        reads = "server.rounds" in inspect.getsource(inspect.getmodule(entry.method))  # type: ignore[arg-type]
        assert not reads or entry.method.ending is not fedtailor.Method.ending, name


def test_fewer_than_done(small: dict[str, Any], tmp_path: Path) -> None:
    """Broken: rounds that are done are lost, or a run ends with more than it was asked for."""
    fedtailor.run("promptfl", small, out=tmp_path / "mine")
    with pytest.raises(UserError, match="rounds=2: 3 are done already; give more"):
        fedtailor.resume(tmp_path / "mine", rounds=2)
    with pytest.raises(UserError, match="rounds: input should be greater than or equal to 1"):
        fedtailor.resume(tmp_path / "mine", rounds=0)


def test_killed_in_between(small: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Broken: a run that is killed while its number of rounds changes can no longer be resumed."""
    from fedtailor.runs import folder

    write, folders = folder.write_atomic, [tmp_path / str(fatal) for fatal in range(4)]
    for fatal, place in enumerate(folders):
        fedtailor.run("promptfl", small, out=place)
        count = iter(range(10))

        def killed(*what: Any, fatal: int = fatal, count: Any = count) -> None:
            if next(count) == fatal:
                raise KeyboardInterrupt
            write(*what)

        with monkeypatch.context() as patch:
            patch.setattr(folder, "write_atomic", killed)
            with pytest.raises(KeyboardInterrupt):
                fedtailor.resume(place, rounds=4)
        assert fedtailor.resume(place).summary["rounds"] == (3 if fatal < 3 else 4)
        assert fedtailor.resume(place, rounds=4).summary["rounds"] == 4
    assert all(rows(place) == rows(folders[0]) for place in folders)


def test_the_command_line(call: Call, small: dict[str, Any], tmp_path: Path) -> None:
    """Broken: `fedtailor run --resume DIR rounds=4` does not do it, or the record of it is not in the folder."""
    words = [f"{key}={value}" for key, value in small.items()]
    call("run", "promptfl", *words, "--out", "mine", "--json")
    answer = call("run", "--resume", "mine", "rounds=4", "--json")
    assert (answer.code, answer.err) == (0, "")
    assert json.loads(answer.out)["rounds"] == 4
    assert len(rows(tmp_path / "mine")) == 4
    assert "rounds = 4" in (tmp_path / "mine" / "run.toml").read_text()
