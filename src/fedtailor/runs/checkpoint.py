"""What counts in a run folder. There are two checkpoints, the last and the one before it, in case one is damaged.

A checkpoint says how long each log is and what its bytes come to, and names the server's state. states.jsonl, as far as
it counts, names those of the clients, which the two have in common but for those that the last round changed. Before a
checkpoint is trusted, all that it names is read and compared.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, TypeAdapter

from ..base.documents import json_lines, read_json, sealed
from ..base.errors import UserError

CHECKPOINT, BEFORE = "checkpoint.json", "checkpoint.before.json"
ROUNDS, STATES = "rounds.jsonl", "states.jsonl"
LOGS = (ROUNDS, "clients.jsonl", STATES)
BLOCK = 1 << 20  # bytes of a log that are read at once

Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
StateName = Annotated[str, Field(pattern=r"^(server|client--?[0-9]+)-[0-9]+\.safetensors$")]


class Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class StateFile(NamedTuple):
    name: str
    digest: str


class StateLine(Strict):
    """A line of states.jsonl."""

    client: int
    name: StateName
    digest: Digest


class Log(Strict):
    size: NonNegativeInt
    digest: Digest


class Checkpoint(Strict):
    version: str
    run: Digest  # of run.toml
    next: Digest | None = None  # of the run.toml that it is about to be replaced by
    round: NonNegativeInt
    server: StateName
    digest: Digest  # of the server's state
    logs: dict[str, Log]

    @classmethod
    def read(cls, path: Path) -> Checkpoint:
        return cls.model_validate(read_json(path, kind=cls))

    def as_bytes(self) -> bytes:
        return sealed(self.model_dump())


@dataclass
class Written:
    """A log as far as it counts: its length, and its bytes run through a hash, which goes on with each line."""

    size: int = 0
    hash: Any = field(default_factory=hashlib.sha256)

    def add(self, data: bytes) -> None:
        self.hash.update(data)
        self.size += len(data)

    def mark(self) -> Log:
        return Log(size=self.size, digest=self.hash.hexdigest())


@dataclass
class Generation:
    """A checkpoint that was found to be whole, and what it stands for."""

    checkpoint: Checkpoint
    logs: dict[str, Written]
    files: dict[int, StateFile]  # each client's state

    @property
    def names(self) -> set[str]:
        return {self.checkpoint.server, *(file.name for file in self.files.values())}


def check(folder: Path, found: Checkpoint) -> Generation:
    """Everything that it names is there, as it was written."""
    if set(found.logs) != set(LOGS):
        raise UserError(f"{folder / CHECKPOINT} is damaged (it names the logs {', '.join(found.logs)})")
    logs = {name: check_log(folder / name, log) for name, log in found.logs.items()}
    files = state_files(folder, found)
    for name, digest in (*files.values(), StateFile(found.server, found.digest)):
        read_state(folder, name, digest)
    return Generation(found, logs, files)


def check_log(path: Path, log: Log) -> Written:
    written, left = Written(), log.size
    if path.is_file():
        with path.open("rb") as file:
            while left and (data := file.read(min(left, BLOCK))):
                written.add(data)
                left -= len(data)
    if left:
        raise UserError(f"{path} is shorter than its checkpoint says")
    if written.mark() != log:
        raise UserError(f"{path} is not as it was written: a line that counts has been changed")
    return written


def state_files(folder: Path, found: Checkpoint) -> dict[int, StateFile]:
    """Each client's, as the last line about it says."""
    path, size = folder / STATES, found.logs[STATES].size
    try:
        rows = TypeAdapter(list[StateLine]).validate_python(json_lines(path.read_bytes()[:size] if size else b""))
    except (OSError, ValueError) as error:
        raise UserError(f"{path} is damaged ({str(error).splitlines()[0]})") from error
    return {row.client: StateFile(row.name, row.digest) for row in rows}


def state_names(folder: Path, found: Checkpoint) -> set[str]:
    return {found.server, *(file.name for file in state_files(folder, found).values())}


def read_state(folder: Path, name: str, digest: str) -> bytes:
    path = folder / "state" / name
    if not path.is_file():
        raise UserError(f"{path} is missing")
    data = path.read_bytes()
    if hashlib.sha256(data).hexdigest() != digest:
        raise UserError(f"{path} is damaged")
    return data


def find(folder: Path, run: str) -> tuple[Generation | None, list[str]]:
    """The last checkpoint that is whole, and what is wrong with a later one. None: the run was ended before its first.

    `run` is the hash of run.toml, which both must be of.
    """
    wrong: list[str] = []
    for path in (folder / CHECKPOINT, folder / BEFORE):
        try:
            if not path.is_file():
                wrong.append(f"{path} is missing")
                continue
            found = Checkpoint.read(path)
            if run in (found.run, found.next):
                return check(folder, found), wrong
        except UserError as error:
            wrong.append(str(error))
            continue
        raise UserError(f"{folder}: the checkpoint belongs to another run than run.toml says; was it edited?")
    written = [name for name in LOGS if (folder / name).is_file() and (folder / name).stat().st_size]
    if all(it.endswith("is missing") for it in wrong) and not written:
        return None, []
    raise UserError(
        f"{'; '.join(wrong)}: this run cannot be resumed. Put back a copy of its folder if there is one, or run it "
        f"anew, in a new folder: fedtailor run {folder / 'run.toml'}"
    )
