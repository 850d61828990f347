"""The run folder. Whatever moment a run is killed at, what is in here is whole, and the run goes on from it.

    run.toml         all settings, resolved; runs the run again
    data.json        names of classes and clients, counts, zero-shot scores: what figures need without the dataset
    rounds.jsonl     a line a round: scores, bytes, seconds
    clients.jsonl    a line a step of a client
    states.jsonl     a line a client's new state: its file, and the hash of that
    checkpoint.json  the one file that says what counts: round, the server's state, lengths and hashes of the three logs
    checkpoint.before.json  the same, of one round before: gone back to if what the last one names is damaged
    state/           safetensors: the server's state, and each client's, which stays out of everything else
    predictions.safetensors  of the last test: what each picture is, and was said to be (predictions.py)
    model/           at the end: the tuned model, which stands alone (model_folder.py)
    result.json      at the end: what `fedtailor run --json` prints

In records, rounds are counted from 1, and classes and clients have their names; states go by a client's number.

A checkpoint is new state files, then one atomic replacement of checkpoint.json (checkpoint.py). Log lines beyond the
lengths that it names belong to a round that was not finished, and are cut off on resuming. There is no generator state
to keep: every draw is made from the seed and its path (rng.py).
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

from ..base.documents import json_lines, json_object
from ..base.errors import Note, UserError
from ..base.files import FolderLock, append, cut, file_hash, make_folder, remove, sync_folder, write_atomic, write_whole
from ..base.version import __version__
from ..client.codec import client_from_bytes, client_to_bytes
from ..client.job import ClientState
from ..client.states import SavedStates
from ..core.types import Server
from ..settings.extensions import outside
from ..settings.keys import read_document
from ..settings.run import Run, read_toml
from .checkpoint import (
    BEFORE,
    CHECKPOINT,
    LOGS,
    ROUNDS,
    STATES,
    Checkpoint,
    Generation,
    StateFile,
    Written,
    find,
    read_state,
    state_names,
)
from .format import FORMAT, check_format
from .result_file import RESULT
from .server_bytes import server_from_bytes, server_to_bytes

DATA = "data.json"


class OtherVersion(UserError):  # noqa: N818  # as it reads
    """Of fedtailor, which wrote a run folder."""


class RunFolder:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.lock = FolderLock(folder)
        self.files: dict[int, StateFile] = {}  # each client's that counts, or is about to
        self.clients = SavedStates(self.files, self.read_client)
        self.logs = {log: Written() for log in LOGS}
        self.last: Checkpoint | None = None
        self.older: list[str] = []  # state files that only the checkpoint before the last one needs

    @classmethod
    def create(cls, folder: Path, run: Run, about: Mapping[str, str]) -> RunFolder:
        """A new run folder; one that has something in it is left alone."""
        cls.check_free(folder)
        try:
            make_folder(folder / "state")
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
        remove(self.folder / RESULT)  # it told of the other
        text = toml_of(run, about)
        following = {"run": self.run_hash, "next": hashlib.sha256(text).hexdigest()}
        for name in (BEFORE, CHECKPOINT) if self.found else ():
            with suppress(UserError):  # a damaged one is of no use to any run
                note = Checkpoint.read(self.folder / name).model_copy(update=following)
                write_atomic(self.folder / name, note.as_bytes())
        write_atomic(self.folder / "run.toml", text)
        for known in ("run_hash", "found"):
            self.__dict__.pop(known, None)

    @staticmethod
    def check_free(folder: Path) -> None:
        if folder.exists() and not folder.is_dir():
            raise UserError(f"{folder} is a file; choose another --out")
        # What a run leaves that was killed before it could write anything is no reason to refuse.
        if folder.exists() and {file.name for file in folder.iterdir()} - {".lock", "state", "run.toml.part"}:
            hint = f"resume the run in it with --resume {folder}, or " if (folder / "run.toml").is_file() else ""
            raise UserError(f"{folder} is not empty; {hint}choose another --out")

    @classmethod
    def reopen_with(cls, folder: Path, clients: int) -> RunFolder:
        """The same for a run that has so many clients by now."""
        store, run, about = cls.reopen(folder)
        try:
            if run.clients != clients:
                store.change(run.model_copy(update={"clients": clients}), about)
        except BaseException:
            store.close()
            raise
        return store

    @classmethod
    def reopen(cls, folder: Path) -> tuple[RunFolder, Run, dict[str, str]]:
        """An existing run folder, refused if it is none or of another version."""
        toml = folder / "run.toml"
        if not toml.is_file():
            raise UserError(f"{folder} is not a run folder: it has no run.toml")
        about = check_version(folder)
        check_format(folder, about)
        store = cls(folder)
        store.lock.acquire()
        try:
            store.found  # noqa: B018  # what is damaged shows now, not after all is prepared
            return store, read_toml(toml), about
        except BaseException:
            store.close()
            raise

    def close(self) -> None:
        self.lock.release()

    def append(self, log: str, rows: Iterable[Mapping[str, Any]]) -> None:
        data = "".join(json.dumps(row) + "\n" for row in rows).encode()
        append(self.folder / log, data)
        self.logs[log].add(data)

    def save_round(self, row: Mapping[str, Any], steps: Iterable[Mapping[str, Any]]) -> None:
        self.append("clients.jsonl", steps)
        self.append(ROUNDS, [row])

    def checkpoint(self, server: Server, changed: Mapping[int, ClientState]) -> None:
        """Make this the state to resume from, with the states of clients that changed since the last one."""
        state, last, data = self.folder / "state", self.last, server_to_bytes(server)
        name, replaced = f"server-{server.round}.safetensors", [last.server] if last else []
        write_whole(state / name, data)
        for k in sorted(changed):
            file = self.write_client(f"client-{k}-{server.round}.safetensors", changed[k])
            replaced += [self.files[k].name] if k in self.files else []
            self.files[k] = file
        sync_folder(state)
        self.append(STATES, ({"client": k, **self.files[k]._asdict()} for k in sorted(changed)))
        self.last = Checkpoint(
            version=__version__,
            run=self.run_hash,
            round=server.round,
            server=name,
            digest=hashlib.sha256(data).hexdigest(),
            logs={log: written.mark() for log, written in self.logs.items()},
        )
        if last:
            write_atomic(self.folder / BEFORE, last.as_bytes())
        write_atomic(self.folder / CHECKPOINT, self.last.as_bytes())
        counts = {name, *(self.files[k].name for k in changed)}  # a round may have been made again
        for old in set(self.older) - counts:  # only now does neither need it
            (state / old).unlink(missing_ok=True)
        self.older = [old for old in replaced if old not in counts]

    def write_client(self, name: str, client: ClientState) -> StateFile:
        data = client_to_bytes(client)
        write_whole(self.folder / "state" / name, data)
        return StateFile(name, hashlib.sha256(data).hexdigest())

    @cached_property
    def run_hash(self) -> str:
        return file_hash(self.folder / "run.toml")

    @cached_property
    def found(self) -> Generation | None:
        """The last checkpoint that is whole. The user is told if that is not the last one."""
        found, wrong = find(self.folder, self.run_hash)
        if found and wrong:
            done = f"after round {found.checkpoint.round}" if found.checkpoint.round else "before the first round"
            warnings.warn(f"{wrong[0]}: going back to the checkpoint before it, {done}", Note, stacklevel=3)
        return found

    def resume(self) -> tuple[Server, Mapping[int, ClientState]] | None:
        """The last checkpoint, or None if the run was killed before its first. What belongs to an unfinished round is
        removed."""
        found = self.found
        del self.found  # from here on it changes
        self.files.clear()
        if found is None:
            self.last, self.logs = None, {log: Written() for log in LOGS}
            for log in LOGS:
                remove(self.folder / log)
            return None
        self.go_on(found)
        return server_from_bytes(
            read_state(self.folder, found.checkpoint.server, found.checkpoint.digest)
        ), self.clients

    def go_on(self, found: Generation) -> None:
        """From this checkpoint, which is made the last one if it was not."""
        self.last, self.logs, self.older = found.checkpoint, found.logs, []
        self.files.update(found.files)
        data, path, named = found.checkpoint.as_bytes(), self.folder / CHECKPOINT, found.names
        if not path.is_file() or path.read_bytes() != data:
            write_atomic(path, data)
        for log, written in found.logs.items():
            if (self.folder / log).is_file() and (self.folder / log).stat().st_size > written.size:
                cut(self.folder / log, written.size)
        with suppress(UserError):  # it is looked at when it is needed
            self.older = sorted(state_names(self.folder, Checkpoint.read(self.folder / BEFORE)) - named)
        for file in (self.folder / "state").iterdir():
            if file.name not in named and file.name not in self.older:
                file.unlink()

    def saved(self) -> tuple[Server, Mapping[int, ClientState]]:
        """The last checkpoint, to look at: nothing in the folder changes."""
        if (found := self.found) is None:
            raise UserError(f"{self.folder} has no checkpoint.json: the run was ended before its first round")
        self.files.update(found.files)
        return server_from_bytes(
            read_state(self.folder, found.checkpoint.server, found.checkpoint.digest)
        ), self.clients

    def read_client(self, k: int) -> ClientState:
        return client_from_bytes(read_state(self.folder, *self.files[k]))

    def done(self) -> int:
        """How many rounds the last checkpoint has behind it."""
        if self.last is None:
            return self.found.checkpoint.round if self.found else 0
        return self.last.round

    def result(self) -> dict[str, Any]:
        """What the run told when it was finished; nothing if it is not, or if that cannot be read."""
        with suppress(OSError, ValueError):
            told = json_object((self.folder / RESULT).read_bytes())
            return told if {"seconds", "peak_rss_mb"} <= told.keys() else {}
        return {}

    def rounds(self) -> list[dict[str, Any]]:
        return read_lines(self.folder / ROUNDS)


def check_version(folder: Path) -> dict[str, Any]:
    """What a run folder's run.toml says about its run; an error if another version wrote it."""
    about: dict[str, Any] = read_document(folder / "run.toml").get("about", {})
    if about.get("version") != __version__:
        raise OtherVersion(
            f"{folder} was written by fedtailor {about.get('version', '(unknown)')}, this is {__version__}; "
            "its numbers would not continue exactly, so go on with that version, or run it anew"
        )
    return about


def toml_of(run: Run, about: Mapping[str, Any]) -> bytes:
    lines = "".join(f"{key} = {json.dumps(value)}\n" for key, value in about.items())
    return f"{run.to_toml()}\n[about]\n{lines}".encode()


def read_lines(path: Path) -> list[dict[str, Any]]:
    try:
        return json_lines(path.read_bytes()) if path.exists() else []
    except ValueError as error:
        raise UserError(f"{path} is damaged ({error})") from error
