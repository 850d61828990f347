"""What may become of a finished run's folder. Each fault is a list of things that are done to it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

from fedtailor.runs.checkpoint import BEFORE, CHECKPOINT, LOGS

Spoil = Callable[[Path], object]
BYTES = {
    "not UTF-8": b"\xff\xfe{",
    "a list": b"[1]",
    "a number": b"3",
    "null": b"null",
    "no key": b"{}",
    "nested": b"[" * 10**5,
    "empty": b"",
}


def flip(pattern: str, place: float = 0.9) -> Spoil:
    """One bit of a file, the last of those that fit."""

    def spoil(folder: Path) -> None:
        path = sorted(folder.glob(pattern))[-1]
        data = bytearray(path.read_bytes())
        data[int(place * len(data))] ^= 1
        path.write_bytes(data)

    return spoil


def digit(file: str, line: int) -> Spoil:
    """Another digit in a line of JSON, which is JSON as before."""

    def spoil(folder: Path) -> None:
        lines = (folder / file).read_bytes().splitlines(keepends=True)
        found = list(re.finditer(rb"\d", lines[line]))[-1]
        other = b"1" if found[0] != b"1" else b"2"
        lines[line] = lines[line][: found.start()] + other + lines[line][found.end() :]
        (folder / file).write_bytes(b"".join(lines))

    return spoil


def number(file: str, *path: str) -> Spoil:
    """Another number in a JSON document."""

    def spoil(folder: Path) -> None:
        document = json.loads((folder / file).read_text())
        place = document
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] += 1
        (folder / file).write_text(json.dumps(document))

    return spoil


def shorten(name: str, by: int = 5) -> Spoil:
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:-by])


def lose(pattern: str) -> Spoil:
    return lambda folder: sorted(folder.glob(pattern))[-1].unlink()


def write(name: str, data: bytes) -> Spoil:
    return lambda folder: (folder / name).write_bytes(data)


def last_round(rounds: int) -> dict[str, list[Spoil]]:
    """What is wrong with the last checkpoint, of a run of so many rounds, and not with the one before it."""
    server, clients = f"state/server-{rounds}.*", f"state/client-*-{rounds}.*"
    return {
        "a bit of the server's state": [flip(server)],
        "a bit of a client's new state": [flip(clients)],
        "the server's state is gone": [lose(server)],
        "a client's new state is gone": [lose(clients)],
        "a bit of checkpoint.json": [flip(CHECKPOINT, 0.5)],
        "checkpoint.json is cut short": [shorten(CHECKPOINT)],
        "checkpoint.json is gone": [lose(CHECKPOINT)],
        **{f"checkpoint.json: {how}": [write(CHECKPOINT, data)] for how, data in BYTES.items()},
        **{f"a digit in the last line of {log}": [digit(log, -1)] for log in LOGS},
        **{f"{log} is cut short": [shorten(log)] for log in LOGS},
    }


def both(rounds: int) -> dict[str, list[Spoil]]:
    """What neither checkpoint can do without."""
    return {
        "a bit of both servers' states": [flip(f"state/server-{t}.*") for t in (rounds, rounds - 1)],
        "a bit of both checkpoints": [flip(CHECKPOINT, 0.5), flip(BEFORE, 0.5)],
        "both checkpoints are gone": [lose(CHECKPOINT), lose(BEFORE)],
        "one is gone, a bit of the other": [lose(CHECKPOINT), flip(BEFORE, 0.5)],
        **{f"a digit in the first line of {log}": [digit(log, 0)] for log in LOGS},
        **{f"{log} is gone": [lose(log)] for log in LOGS},
        **{f"run.toml: {how}": [write("run.toml", data)] for how, data in BYTES.items()},
        "another setting in run.toml": [
            lambda folder: (folder / "run.toml").write_text(
                (folder / "run.toml").read_text().replace("batch = 4", "batch = 8")
            )
        ],
    }


# Documents that verbs read, and which verb does.
READ = {
    "result.json": ("compare", "--runs", "RUN"),
    "data.json": ("report", "RUN"),
    "rounds.jsonl": ("plot", "RUN", "--figure", "curves"),
    "run.toml": ("report", "RUN"),
    "model/model.json": ("predict", "RUN", "PICTURE"),
    "predictions.safetensors": ("report", "RUN"),
}
DOCUMENTS: dict[str, tuple[Spoil, tuple[str, ...]]] = {
    **{f"{file}: {how}": (write(file, data), verb) for file, verb in READ.items() for how, data in BYTES.items()},
    "another number in result.json": (number("result.json", "global", "overall"), READ["result.json"]),
    "another number in data.json": (number("data.json", "zero_shot", "global", "overall"), READ["data.json"]),
    "another number in rounds.jsonl": (digit("rounds.jsonl", 0), READ["rounds.jsonl"]),
    "another number in model.json": (number("model/model.json", "preprocessing", "size"), READ["model/model.json"]),
    "a bit of predictions.safetensors": (flip("predictions.safetensors"), READ["predictions.safetensors"]),
    "a bit of the model": (flip("model/shared.safetensors"), READ["model/model.json"]),
}
# Empty or without a line there is nothing in it, which is no fault: the run has no rounds yet.
for name in ("rounds.jsonl: empty", "rounds.jsonl: a list", "rounds.jsonl: a number"):
    del DOCUMENTS[name]
