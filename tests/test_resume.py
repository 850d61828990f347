"""A run that is killed, at whatever moment, goes on to exactly the numbers it would have had."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import fedtailor
from fedtailor.base.errors import UserError
from run_content import content

ROUNDS = 4
# When a run is killed, and the round of the checkpoint that it leaves behind.
MOMENTS = {
    "before the first checkpoint": None,
    "in the first round": 0,
    "within a round": 1,
    "while a state file is written": 1,
    "between the logs": 1,
    "within a log line": 1,
    "after the logs": 1,
    "before the checkpoint": 1,
    "after the checkpoint": 2,
    "before the result": ROUNDS,
}

# Runs once for each moment in a process of its own, which kills itself then. SIGKILL cannot be caught: no handler,
# no `finally`, no flushing. Forked, so that torch is imported once for all.
KILLER = """
import json, os, signal, sys
from pathlib import Path

import torch
import fedtailor
import sklearn.metrics
from fedtailor.runs import execute, folder as run_folder
from fedtailor.simulation.local import LocalEngine

RunFolder = run_folder.RunFolder
torch.optim.SGD([torch.zeros(1, requires_grad=True)], 0.1)  # what torch imports late, it imports before the forks

def die():
    os.kill(os.getpid(), signal.SIGKILL)

def arm(moment):
    seen = {"checkpoint.json": 0, "state": 0, "rounds.jsonl": 0, "steps": 0}
    write, whole, append, step = run_folder.write_atomic, run_folder.write_whole, RunFolder.append, LocalEngine.step

    def new_write(path, data):
        name = path.name
        if name == "result.json" and moment == "before the result":
            die()
        if name == "checkpoint.json":
            seen[name] += 1
            if moment == "before the first checkpoint" or (moment == "before the checkpoint" and seen[name] == 3):
                die()
        write(path, data)
        if name == "checkpoint.json" and moment == "after the checkpoint" and seen[name] == 3:
            die()

    def new_whole(path, data):
        if path.name.startswith("client-"):
            seen["state"] += 1
            if moment == "while a state file is written" and seen["state"] == 3:
                path.with_name(path.name + ".part").write_bytes(data[: len(data) // 2])
                die()
        whole(path, data)

    def new_append(self, log, rows):
        rows = list(rows)
        if log == "rounds.jsonl":
            seen[log] += 1
            if seen[log] == 2 and moment == "between the logs":
                die()
            if seen[log] == 2 and moment == "within a log line":
                with (self.folder / log).open("a") as file:
                    file.write(json.dumps(rows[0])[:40])
                    file.flush()
                    die()
        append(self, log, rows)
        if log == "rounds.jsonl" and seen[log] == 2 and moment == "after the logs":
            die()

    def new_step(self, pass_, k, task):
        seen["steps"] += 1
        if (moment, seen["steps"]) in {("in the first round", 1), ("within a round", 4)}:
            die()
        return step(self, pass_, k, task)

    run_folder.write_atomic = execute.write_atomic = new_write
    run_folder.write_whole = new_whole
    RunFolder.append, LocalEngine.step = new_append, new_step

settings, folder, moments = json.loads(sys.argv[1]), Path(sys.argv[2]), json.loads(sys.argv[3])
ends = {}
for moment in moments:
    child = os.fork()
    if child == 0:
        arm(moment)
        fedtailor.run("promptfl", settings, out=folder / moment)
        os._exit(0)
    ends[moment] = os.waitpid(child, 0)[1]
print(json.dumps(ends))
"""

# Tells each round that is over, and from a certain one on waits to be killed.
TELLER = """
import json, sys
import fedtailor

class Teller(fedtailor.Callback):
    def on_round(self, record, rounds):
        print(record.round, flush=True)
        if record.round == int(sys.argv[3]):
            sys.stdin.read()

fedtailor.run("promptfl", json.loads(sys.argv[1]), out=sys.argv[2], callback=Teller())
"""


def script(text: str, *words: str) -> list[str]:
    return [sys.executable, "-c", text, *words]


@pytest.fixture(scope="module")
def settings(small: dict[str, Any]) -> dict[str, Any]:
    return {**small, "rounds": ROUNDS}


@pytest.fixture(scope="module")
def straight(settings: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run that nobody stopped."""
    folder = tmp_path_factory.mktemp("straight") / "run"
    fedtailor.run("promptfl", settings, out=folder)
    return folder


@pytest.fixture(scope="module")
def killed(settings: dict[str, Any], straight: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs that were killed, one for each moment. (After the straight one, so that the images are encoded.)"""
    folder = tmp_path_factory.mktemp("killed")
    words = script(KILLER, json.dumps(settings), str(folder), json.dumps(list(MOMENTS)))
    done = subprocess.run(words, check=True, capture_output=True, text=True, timeout=120)
    assert json.loads(done.stdout) == dict.fromkeys(MOMENTS, signal.SIGKILL), done.stderr
    left = {moment: checkpoint_round(folder / moment) for moment in MOMENTS}
    assert left == MOMENTS
    return folder


def checkpoint_round(folder: Path) -> int | None:
    path = folder / "checkpoint.json"
    return json.loads(path.read_text())["round"] if path.exists() else None


@pytest.mark.parametrize("moment", MOMENTS)
def test_killed_and_resumed(moment: str, killed: Path, straight: Path) -> None:
    """Every log line, every state file and the summary are those of the run that nobody stopped, bit for bit."""
    folder = killed / moment
    assert not (folder / "result.json").exists()
    result = fedtailor.resume(folder)
    assert content(folder) == content(straight)
    assert len(result.rounds) == ROUNDS


def test_killed_from_outside_while_its_folder_is_asked_for(
    settings: dict[str, Any], straight: Path, tmp_path: Path
) -> None:
    """While a process runs in a folder, another is refused there; when it is killed, the folder is free and goes on."""
    words = script(TELLER, json.dumps(settings), str(tmp_path / "run"), "2")
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(2)] == ["1\n", "2\n"]
        with pytest.raises(UserError, match="another process is running in"):
            fedtailor.resume(tmp_path / "run")
        process.kill()
    assert process.returncode == -signal.SIGKILL
    fedtailor.resume(tmp_path / "run")
    assert content(tmp_path / "run") == content(straight)


def test_killed_from_outside_at_any_time(settings: dict[str, Any], tmp_path: Path) -> None:
    """Killed wherever it happens to be after seven rounds, and resumed: the numbers of a straight run."""
    longer = {**settings, "rounds": 20}
    words = script(TELLER, json.dumps(longer), str(tmp_path / "run"), "-1")
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for _ in range(7):
            process.stdout.readline()
        process.kill()
    fedtailor.resume(tmp_path / "run")
    fedtailor.run("promptfl", longer, out=tmp_path / "straight")
    assert content(tmp_path / "run") == content(tmp_path / "straight")


class Stopping(fedtailor.Callback):
    def on_round(self, record: Any, rounds: int) -> None:
        raise KeyboardInterrupt


def test_stopped_after_every_round(settings: dict[str, Any], straight: Path, tmp_path: Path) -> None:
    """Ctrl-C after each round and resumed each time, through all rounds."""
    with pytest.raises(KeyboardInterrupt):
        fedtailor.run("promptfl", settings, out=tmp_path / "run", callback=Stopping())
    for _ in range(ROUNDS - 1):
        with pytest.raises(KeyboardInterrupt):
            fedtailor.resume(tmp_path / "run", callback=Stopping())
    fedtailor.resume(tmp_path / "run", callback=Stopping())
    assert content(tmp_path / "run") == content(straight)


def test_killed_before_anything_was_written(tmp_path: Path) -> None:
    """A folder in which a run was killed before its run.toml was there holds nothing to resume, and says so."""
    (tmp_path / "run" / "state").mkdir(parents=True)
    with pytest.raises(UserError, match=r"is not a run folder: it has no run\.toml"):
        fedtailor.resume(tmp_path / "run")
