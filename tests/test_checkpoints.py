"""Two checkpoints: what is damaged of the last one costs a round, what both need ends in a sentence."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

import fedtailor
from fedtailor.base.errors import Note, UserError
from fedtailor.runs.checkpoint import BEFORE, CHECKPOINT, LOGS
from fedtailor.runs.folder import RunFolder
from run_content import content

ROUNDS = 4
Spoil = Callable[[Path], object]


@pytest.fixture(scope="module")
def finished(small: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "finished"
    fedtailor.run("promptfl", {**small, "rounds": ROUNDS}, out=folder)
    return folder


@pytest.fixture
def run_folder(finished: Path, tmp_path: Path) -> Path:
    """A copy of a finished run, to be spoilt."""
    return Path(shutil.copytree(finished, tmp_path / "run"))


def flip(pattern: str, place: float = 0.9) -> Spoil:
    """One bit of a file, the last of those that fit."""

    def spoil(folder: Path) -> None:
        path = sorted(folder.glob(pattern))[-1]
        data = bytearray(path.read_bytes())
        data[int(place * len(data))] ^= 1
        path.write_bytes(data)

    return spoil


def line(log: str, which: int) -> Spoil:
    """Another digit in a line of a log, which is JSON as before."""

    def spoil(folder: Path) -> None:
        lines = (folder / log).read_bytes().splitlines(keepends=True)
        digit = list(re.finditer(rb"\d", lines[which]))[-1]
        other = b"1" if digit[0] != b"1" else b"2"
        lines[which] = lines[which][: digit.start()] + other + lines[which][digit.end() :]
        json.loads(lines[which])
        (folder / log).write_bytes(b"".join(lines))

    return spoil


def shorten(name: str, by: int = 5) -> Spoil:
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:-by])


def lose(pattern: str) -> Spoil:
    return lambda folder: sorted(folder.glob(pattern))[-1].unlink()


def write(name: str, text: str) -> Spoil:
    return lambda folder: (folder / name).write_text(text)


LAST = f"state/server-{ROUNDS}.*"
NEW = f"state/client-*-{ROUNDS}.*"
ONLY_THE_LAST: dict[str, Spoil] = {
    "a bit of the server's state": flip(LAST),
    "a bit of a client's new state": flip(NEW),
    "the server's state is gone": lose(LAST),
    "a client's new state is gone": lose(NEW),
    "a bit of checkpoint.json": flip(CHECKPOINT, 0.5),
    "checkpoint.json is cut short": shorten(CHECKPOINT),
    "checkpoint.json is empty": write(CHECKPOINT, ""),
    "checkpoint.json is nested": write(CHECKPOINT, "[" * 100_000),
    "checkpoint.json is another document": write(CHECKPOINT, '{"run": "x"}'),
    "checkpoint.json is a list": write(CHECKPOINT, "[3]"),
    "checkpoint.json is gone": lose(CHECKPOINT),
    **{f"a digit in the last line of {log}": line(log, -1) for log in LOGS},
    **{f"{log} is cut short": shorten(log) for log in LOGS},
}
BOTH: dict[str, tuple[Spoil, ...]] = {
    "both servers' states": (flip(LAST), flip(f"state/server-{ROUNDS - 1}.*")),
    "both checkpoints": (flip(CHECKPOINT, 0.5), flip(BEFORE, 0.5)),
    "both checkpoints are gone": (lose(CHECKPOINT), lose(BEFORE)),
    "one is gone, one is damaged": (lose(CHECKPOINT), flip(BEFORE, 0.5)),
    **{f"a digit in the first line of {log}": (line(log, 0),) for log in LOGS},
    **{f"{log} is gone": (lose(log),) for log in LOGS},
}


@pytest.mark.parametrize("fault", ONLY_THE_LAST)
def test_one_round_back(fault: str, run_folder: Path, finished: Path) -> None:
    """Said, and to the same bits as if nothing had been wrong."""
    ONLY_THE_LAST[fault](run_folder)
    with pytest.warns(Note, match=f"going back to the checkpoint before it, after round {ROUNDS - 1}") as told:
        fedtailor.resume(run_folder)
    assert len(told) == 1
    assert content(run_folder) == content(finished)
    fedtailor.resume(run_folder)  # and now all is well


@pytest.mark.parametrize("fault", BOTH)
def test_refused_with_a_sentence(fault: str, run_folder: Path) -> None:
    """Nothing in the folder changes, and its lock is free again."""
    for spoil in BOTH[fault]:
        spoil(run_folder)
    before = {p: p.read_bytes() for p in run_folder.rglob("*") if p.is_file()}
    with pytest.raises(UserError, match=r"this run cannot be resumed\. Put back a copy .* fedtailor run .*run\.toml"):
        fedtailor.resume(run_folder)
    assert {p: p.read_bytes() for p in run_folder.rglob("*") if p.is_file()} == before
    with FileLock(run_folder / ".lock", timeout=0):
        pass


@pytest.mark.parametrize("spoil", [flip(BEFORE, 0.5), lose(BEFORE), flip(f"state/server-{ROUNDS - 1}.*")])
def test_only_the_one_before(spoil: Spoil, run_folder: Path, finished: Path) -> None:
    """It is not needed, and is there again after the next round."""
    spoil(run_folder)
    fedtailor.resume(run_folder, rounds=ROUNDS + 1)
    assert json.loads((run_folder / BEFORE).read_text())["round"] == ROUNDS
    flip(f"state/server-{ROUNDS + 1}.*")(run_folder)
    with pytest.warns(Note, match=f"after round {ROUNDS}"):
        fedtailor.resume(run_folder)


def test_no_byte_of_a_checkpoint_goes_unnoticed(run_folder: Path) -> None:
    """Broken: a changed digit makes another round, another length or another state count."""
    whole = (run_folder / CHECKPOINT).read_bytes()
    for place in range(0, len(whole), 3):
        for bit in (1, 4):
            data = bytearray(whole)
            data[place] ^= bit
            if json_equal(bytes(data), whole):
                continue  # a space that is another space
            (run_folder / CHECKPOINT).write_bytes(data)
            with pytest.warns(Note, match="going back"):
                found = RunFolder(run_folder).found
            assert found is not None
            assert found.checkpoint.round == ROUNDS - 1


def json_equal(one: bytes, other: bytes) -> bool:
    try:
        return bool(json.loads(one) == json.loads(other))
    except ValueError:
        return False


def test_back_and_on_to_more_rounds(run_folder: Path, small: dict[str, Any], tmp_path: Path) -> None:
    """Broken: the checkpoint that is gone back to belongs to another run than run.toml says by now."""
    fedtailor.resume(run_folder, rounds=ROUNDS + 1)
    flip(f"state/server-{ROUNDS + 1}.*")(run_folder)
    with pytest.warns(Note, match=f"after round {ROUNDS}"):
        fedtailor.resume(run_folder, rounds=ROUNDS + 2)
    fedtailor.run("promptfl", {**small, "rounds": ROUNDS + 2}, out=tmp_path / "straight")
    ours, theirs = content(run_folder), content(tmp_path / "straight")
    assert (ours["state"], ours["summary"], ours["run"]) == (theirs["state"], theirs["summary"], theirs["run"])


def test_more_rounds_do_not_hide_an_edit(run_folder: Path) -> None:
    """Broken: with --resume rounds=N, whatever else was changed in run.toml counts from there on."""
    toml = run_folder / "run.toml"
    toml.write_text(toml.read_text().replace("lr = 0.05", "lr = 0.01"))
    with pytest.raises(UserError, match="was it edited"):
        fedtailor.resume(run_folder, rounds=ROUNDS + 1)


def test_killed_between_two_changes(run_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Broken: asked for more rounds twice, a run that was killed in between belongs to none of its checkpoints."""
    fedtailor.resume(run_folder, rounds=ROUNDS + 1)
    from fedtailor.runs import folder as module

    write, names = module.write_atomic, list[str]()

    def killed(path: Path, data: bytes) -> None:
        names.append(path.name)
        if path.name == "run.toml":
            raise KeyboardInterrupt
        write(path, data)

    with monkeypatch.context() as patch:
        patch.setattr(module, "write_atomic", killed)
        with pytest.raises(KeyboardInterrupt):
            fedtailor.resume(run_folder, rounds=ROUNDS + 2)
    assert names == [BEFORE, CHECKPOINT, "run.toml"]
    fedtailor.resume(run_folder, rounds=ROUNDS + 3)
    assert json.loads((run_folder / CHECKPOINT).read_text())["round"] == ROUNDS + 3
