"""The run folder. Whatever moment a run is killed at, what is in here is whole, and the run goes on from it.

    run.toml         all settings, resolved; runs the run again
    data.json        names of classes and clients, counts, zero-shot scores: what figures need without the dataset
    rounds.jsonl     a line a round: scores, bytes, seconds
    clients.jsonl    a line a step of a client; rounds are counted from 1, here as in every record
    states.jsonl     a line a client's new state: its file, and the hash of that
    checkpoint.json  the one file that says what counts: round, the server's state, lengths of the three logs
    state/           safetensors: the server's state, and each client's, which stays out of everything else
    predictions.safetensors  of the last test: what each picture is, and was said to be (predictions.py)
    model/           at the end: the tuned model, which stands alone (model_folder.py)
    result.json      at the end: what `fedtailor run --json` prints

A checkpoint is new state files, then one atomic replacement of checkpoint.json. Log lines beyond the lengths that it
names belong to a round that was not finished, and are cut off on resuming. There is no generator state to keep: every
draw is made from the seed and its path (rng.py).
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from ..base.errors import UserError
from ..base.files import FolderLock, file_hash, write_atomic
from ..base.version import __version__
from ..client.codec import client_from_bytes, client_to_bytes
from ..client.job import ClientState
from ..client.states import SavedStates
from ..core.types import Server
from ..settings.extensions import outside
from ..settings.keys import read_document
from ..settings.run import Run, read_toml
from ..simulation.engine import StepLog
from .server_bytes import server_from_bytes, server_to_bytes

FORMAT = 2  # of the records. 2: rounds are counted from 1 in clients.jsonl too, whose pass_name is now pass
DATA = "data.json"
RESULT = "result.json"
STATES = "states.jsonl"
LOGS = ("rounds.jsonl", "clients.jsonl", STATES)


class StateFile(NamedTuple):
    name: str
    digest: str


class RunFolder:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.lock = FolderLock(folder)
        self.files: dict[int, StateFile] = {}  # each client's that counts, or is about to
        self.clients = SavedStates(self.files, self.read_client)
        self.server_file = ""

    @classmethod
    def create(cls, folder: Path, run: Run, about: Mapping[str, str]) -> RunFolder:
        """A new run folder; one that has something in it is left alone."""
        cls.check_free(folder)
        try:
            (folder / "state").mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"cannot make the folder {folder}: {error.strerror}; choose another --out") from error
        store = cls(folder)
        store.lock.acquire()
        strange = outside(run.method.name, run.tuner.name, run.labels.name)
        head = {"version": __version__, "format": FORMAT, **({"outside": strange} if strange else {}), **about}
        write_atomic(folder / "run.toml", toml_of(run, head))
        return store

    def change(self, run: Run, about: Mapping[str, Any]) -> None:
        """Go on as this run. Killed at any moment, the folder holds the one or the other."""
        (self.folder / RESULT).unlink(missing_ok=True)  # it told of the other
        text, path = toml_of(run, about), self.folder / "checkpoint.json"
        if path.is_file():
            note = {**read_note(path), "next": hashlib.sha256(text).hexdigest()}
            write_atomic(path, json.dumps(note, indent=1).encode())
        write_atomic(self.folder / "run.toml", text)
        self.__dict__.pop("run_hash", None)

    @staticmethod
    def check_free(folder: Path) -> None:
        if folder.exists() and not folder.is_dir():
            raise UserError(f"{folder} is a file; choose another --out")
        # What a run leaves that was killed before it could write anything is no reason to refuse.
        if folder.exists() and {file.name for file in folder.iterdir()} - {".lock", "state", "run.toml.part"}:
            hint = f"resume the run in it with --resume {folder}, or " if (folder / "run.toml").is_file() else ""
            raise UserError(f"{folder} is not empty; {hint}choose another --out")

    @classmethod
    def reopen(cls, folder: Path) -> tuple[RunFolder, Run, dict[str, str]]:
        """An existing run folder, refused if it is none or of another version."""
        toml = folder / "run.toml"
        if not toml.is_file():
            raise UserError(f"{folder} is not a run folder: it has no run.toml")
        about = read_document(toml).get("about", {})
        if about.get("version") != __version__:
            raise UserError(
                f"{folder} was written by fedtailor {about.get('version', '(unknown)')}, this is {__version__}; "
                "its numbers would not continue exactly, so run it anew, in a new folder"
            )
        if about.get("format") != FORMAT:
            raise UserError(
                f"{folder} has records in format {about.get('format', 1)}, this fedtailor writes format {FORMAT}; "
                "they cannot stand in one folder, so run it anew, in a new one"
            )
        store = cls(folder)
        store.lock.acquire()
        try:
            return store, read_toml(toml), about
        except BaseException:
            store.close()
            raise

    def close(self) -> None:
        self.lock.release()

    def append(self, log: str, rows: Iterable[Mapping[str, Any]]) -> None:
        with (self.folder / log).open("a") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)
            file.flush()
            os.fsync(file.fileno())

    def save_round(self, row: Mapping[str, Any], visits: Iterable[StepLog]) -> None:
        self.append("clients.jsonl", [visit.row() for visit in visits])
        self.append("rounds.jsonl", [row])

    def checkpoint(self, server: Server, changed: Mapping[int, ClientState]) -> None:
        """Make this the state to resume from, with the states of clients that changed since the last one."""
        state, old = self.folder / "state", [self.server_file]
        self.server_file = f"server-{server.round}.safetensors"
        data = server_to_bytes(server)
        write_atomic(state / self.server_file, data)
        for k in sorted(changed):
            file = self.write_client(f"client-{k}-{server.round}.safetensors", changed[k])
            old += [self.files[k].name] if k in self.files and self.files[k].name != file.name else []
            self.files[k] = file
        self.append(STATES, ({"client": k, **self.files[k]._asdict()} for k in sorted(changed)))
        note = {
            "version": __version__,
            "run": self.run_hash,
            "round": server.round,
            "server": self.server_file,
            "digest": hashlib.sha256(data).hexdigest(),
            "logs": {log: (self.folder / log).stat().st_size for log in LOGS if (self.folder / log).exists()},
        }
        write_atomic(self.folder / "checkpoint.json", json.dumps(note, indent=1).encode())
        for name in old:  # only now is nothing older needed
            if name and name != self.server_file:
                (state / name).unlink(missing_ok=True)

    def write_client(self, name: str, client: ClientState) -> StateFile:
        data = client_to_bytes(client)
        write_atomic(self.folder / "state" / name, data)
        return StateFile(name, hashlib.sha256(data).hexdigest())

    @cached_property
    def run_hash(self) -> str:
        return file_hash(self.folder / "run.toml")

    def resume(self) -> tuple[Server, Mapping[int, ClientState]] | None:
        """The last checkpoint, or None if the run was killed before its first. What belongs to an unfinished round is
        removed."""
        path = self.folder / "checkpoint.json"
        if not path.is_file():
            for log in LOGS:
                (self.folder / log).unlink(missing_ok=True)
            return None
        note = read_note(path)
        if self.run_hash not in (note["run"], note.get("next")):
            raise UserError(f"{self.folder}: the checkpoint belongs to another run than run.toml says; was it edited?")
        for log in LOGS:
            cut(self.folder / log, note["logs"].get(log, 0))
        for row in read_lines(self.folder / STATES):
            self.files[row["client"]] = StateFile(row["name"], row["digest"])
        for name, digest in self.files.values():
            self.read_state(name, digest)  # one that is damaged shows now, not when its client is asked
        self.server_file = note["server"]
        named = {self.server_file, *(file.name for file in self.files.values())}
        for file in (self.folder / "state").iterdir():
            if file.name not in named:
                file.unlink()
        return server_from_bytes(self.read_state(self.server_file, note["digest"])), self.clients

    def saved(self) -> tuple[Server, Mapping[int, ClientState]]:
        """The last checkpoint, to look at: nothing in the folder changes."""
        path = self.folder / "checkpoint.json"
        if not path.is_file():
            raise UserError(f"{self.folder} has no checkpoint.json: the run was ended before its first round")
        note = read_note(path)
        counted = (self.folder / STATES).read_bytes()[: note["logs"].get(STATES, 0)]
        for row in map(json.loads, counted.splitlines()):
            self.files[row["client"]] = StateFile(row["name"], row["digest"])
        return server_from_bytes(self.read_state(note["server"], note["digest"])), self.clients

    def read_client(self, k: int) -> ClientState:
        return client_from_bytes(self.read_state(*self.files[k]))

    def read_state(self, name: str, digest: str) -> bytes:
        path = self.folder / "state" / name
        if not path.is_file():
            raise UserError(f"{path} is missing; this run cannot be resumed")
        data = path.read_bytes()
        if hashlib.sha256(data).hexdigest() != digest:
            raise UserError(f"{path} is damaged; this run cannot be resumed")
        return data

    def done(self) -> int:
        """How many rounds the last checkpoint has behind it."""
        path = self.folder / "checkpoint.json"
        return int(read_note(path)["round"]) if path.is_file() else 0

    def result(self) -> dict[str, Any]:
        """What the run told when it was finished; nothing if it is not, or if that cannot be read."""
        with suppress(OSError, ValueError):
            told: dict[str, Any] = json.loads((self.folder / RESULT).read_text())
            return told if isinstance(told, dict) and {"seconds", "peak_rss_mb"} <= told.keys() else {}
        return {}

    def rounds(self) -> list[dict[str, Any]]:
        return read_lines(self.folder / "rounds.jsonl")


def toml_of(run: Run, about: Mapping[str, Any]) -> bytes:
    lines = "".join(f"{key} = {json.dumps(value)}\n" for key, value in about.items())
    return f"{run.to_toml()}\n[about]\n{lines}".encode()


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def read_note(path: Path) -> dict[str, Any]:
    try:
        note = json.loads(path.read_text())
        lacking = {"run", "round", "server", "digest", "logs"} - set(note)
        if lacking or not isinstance(note, dict):
            raise ValueError("it is not a checkpoint")
    except (ValueError, TypeError) as error:
        raise UserError(f"{path} is damaged ({error}); this run cannot be resumed") from error
    return note


def cut(log: Path, length: int) -> None:
    size = log.stat().st_size if log.exists() else 0
    if size < length:
        raise UserError(f"{log} is shorter than its checkpoint says; this run cannot be resumed")
    if size > length:
        with log.open("r+b") as file:
            file.truncate(length)
            os.fsync(file.fileno())
