"""A client that is elsewhere: its pictures, its state on its own disk, and what it answers to letters.

Its state is kept version by version, one more with each pass, until the server says that nothing older than some
version will be asked for. So an order is always carried out from the very state that it names: once more if an answer
was lost or the server fell back to its last checkpoint, and as if nothing had been if an answer came too late to count.
"""

from __future__ import annotations

import hashlib
import logging
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import torch

from ..base.errors import UserError
from ..base.files import write_atomic
from ..base.version import __version__
from ..client.codec import client_from_bytes, client_to_bytes
from ..client.job import ClientState, Job, Task
from ..client.step import client_step
from ..core.types import Samples, Server
from ..data.dataset import Indices
from ..evaluation.metrics import Score
from ..evaluation.pseudo_labels import Tally, tally
from ..evaluation.testing import EvalSet, score_client, score_shared, score_zero_shot
from ..labelers.base import INDEX, LABEL
from .messages import (
    MAX_TEXT,
    EvaluateReply,
    EvaluateRequest,
    Invitation,
    Numbered,
    PassReply,
    PassRequest,
    Ready,
    Refusal,
    RefusalCode,
    TensorGroups,
    decode_message,
    encode_message,
)

log = logging.getLogger("fedtailor.site")
INVITATION = "charter.safetensors"
STATE = re.compile(r"state-(\d+)-\w+-\d+")
DIGEST = 32  # bytes at the head of a state file: the hash of the rest


@dataclass(frozen=True)
class Session:
    """What a client works with in one run."""

    who: int  # its number there
    job: Job
    data: Samples
    tests: EvalSet  # all of it the client's own
    truths: Indices | None  # of its training pictures, to measure pseudo-labels by; no pass can see them
    threads: int

    @cached_property
    def zero_shot(self) -> Score:
        return score_zero_shot(self.job, self.tests)[0]


class Refused(Exception):  # noqa: N818  # as it reads
    def __init__(self, why: RefusalCode, text: str) -> None:
        super().__init__(text)
        self.why = why


class RemoteClient:
    def __init__(self, folder: Path, furnish: Callable[[Invitation], Session]) -> None:
        self.folder = folder
        self.furnish = furnish  # a UserError from it says why this client cannot take part
        self.rooms: dict[str, Session] = {}

    def answer(self, data: bytes) -> bytes:
        """The answer to any letter. Whatever goes wrong is a refusal: nobody waits in vain, and the client lives on."""
        serial = ""
        try:
            letter, tensors = decode_message(data)
            serial = letter.serial if isinstance(letter, Numbered) else ""
            if isinstance(letter, Invitation):
                return self.open(letter)
            if isinstance(letter, PassRequest):
                return self.carry_out(letter, tensors)
            if isinstance(letter, EvaluateRequest):
                return self.sit(letter, tensors)
            raise UserError("this letter is not for clients")
        except Refused as refused:
            log.warning("%s: %s", refused.why, refused)
            return encode_message(Refusal(serial=serial, why=refused.why, text=str(refused)[:MAX_TEXT]))
        except Exception as error:
            log.warning("a letter could not be answered", exc_info=error)
            told = str(error) if isinstance(error, UserError | OSError) else f"{type(error).__name__}: {error}"
            return encode_message(Refusal(serial=serial, why="failed", text=told[:MAX_TEXT]))

    def open(self, charter: Invitation) -> bytes:
        """Get ready for a run: CLIP loaded, pictures encoded. The charter is kept for the next start."""
        room = self.furnished(charter)
        folder = self.folder / charter.run
        folder.mkdir(parents=True, exist_ok=True)
        write_atomic(folder / INVITATION, encode_message(charter))
        log.info(
            "run %s: ready, %d images to train on, %d to test", charter.run[:8], len(room.data), len(room.tests.labels)
        )
        return encode_message(Ready(samples=len(room.data), tests=len(room.tests.labels)))

    def furnished(self, charter: Invitation) -> Session:
        if charter.version != __version__:
            text = f"this client has fedtailor {__version__}, the server {charter.version}; install the same on both"
            raise Refused("unfit", text)
        try:
            self.rooms = {charter.run: self.furnish(charter)}  # of one run at a time: it holds CLIP
        except UserError as error:
            raise Refused("unfit", str(error)) from error
        return self.rooms[charter.run]

    def room(self, letter: PassRequest | EvaluateRequest) -> Session:
        room = self.rooms.get(letter.run) or self.reopened(letter.run)
        if letter.client != room.who:
            raise UserError(f"a letter for client {letter.client} came to client {room.who}")
        return room

    def reopened(self, run: str) -> Session:
        """After a start anew, by the charter that was kept."""
        file = self.folder / run / INVITATION
        try:
            charter = decode_message(file.read_bytes())[0] if file.is_file() else None
        except UserError:
            charter = None  # damaged is as good as gone: it will be sent again
        if not isinstance(charter, Invitation) or charter.run != run:
            raise Refused("stranger", "this client has not been told of the run")
        return self.furnished(charter)

    def carry_out(self, order: PassRequest, tensors: TensorGroups) -> bytes:
        room, states = self.room(order), StateFiles(self.folder / order.run)
        before = states.read(order.version, order.mark)
        task = Task(order.pass_name, order.round, tensors["params"], tensors["inbox"])
        torch.set_num_threads(room.threads)
        began = time.perf_counter()
        reply, after = client_step(room.job, room.who, room.job.find_pass(task.pass_name), task, before, room.data)
        states.write(replace(after, mark=order.serial))
        states.forget(below=order.kept)
        took = round(time.perf_counter() - began, 4)
        log.info("run %s, round %d: %s, %.1f s", order.run[:8], order.round + 1, order.pass_name, took)
        answer = PassReply(
            run=order.run,
            client=room.who,
            serial=order.serial,
            version=after.version,
            samples=len(room.data),
            seconds=took,
            weight=reply.weight,
        )
        return encode_message(answer, params=reply.params, stats=reply.stats)

    def sit(self, exam: EvaluateRequest, tensors: TensorGroups) -> bytes:
        room = self.room(exam)
        client = StateFiles(self.folder / exam.run).read(exam.version, exam.mark)
        server = Server(0, tensors["params"])  # in its eyes there is one client, number 0
        torch.set_num_threads(room.threads)
        marks = EvaluateReply(
            run=exam.run,
            client=room.who,
            serial=exam.serial,
            personal=score_client(room.job, server, 0, client, room.tests),
            shared=score_shared(room.job, server, room.tests),
            zero_shot=room.zero_shot,
            pseudo=pseudo_label_tally(room, client),
        )
        return encode_message(marks)


def pseudo_label_tally(room: Session, client: ClientState) -> Tally | None:
    if room.job.labeler is None or room.truths is None:
        return None
    memory, none = client.memory, torch.empty(0, dtype=torch.int64)
    picture, y = (memory.get(name, none).numpy() for name in (INDEX, LABEL))
    return tally(room.truths, picture, y, np.ones(len(room.truths), bool))


class StateFiles:
    """A client's states in one run, a file each, whole or not there.

    Named by version and by the order that made it: an old order that comes late cannot write over what counts.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, version: int, mark: str) -> Path:
        return self.folder / f"state-{version}-{mark}"

    def read(self, version: int, mark: str) -> ClientState:
        if version == 0:
            return ClientState()
        path = self.path(version, mark)
        data = path.read_bytes() if path.is_file() else b""
        if not data or hashlib.sha256(data[DIGEST:]).digest() != data[:DIGEST]:
            held = ", ".join(str(version) for version, _ in self.held()) or "none"
            text = f"state {version} is {'damaged' if data else 'not here'}; of this run there are: {held}"
            raise Refused("lost", text)
        return client_from_bytes(data[DIGEST:])

    def write(self, client: ClientState) -> None:
        data, path = client_to_bytes(client), self.path(client.version, client.mark)
        try:
            write_atomic(path, hashlib.sha256(data).digest() + data)
        except OSError:  # a full disk: leave no half of it
            path.with_name(path.name + ".part").unlink(missing_ok=True)
            raise

    def held(self) -> list[tuple[int, Path]]:
        return sorted((int(name[1]), path) for path in self.folder.glob("*") if (name := STATE.fullmatch(path.name)))

    def forget(self, below: int) -> None:
        for version, path in self.held():
            if version < below:
                path.unlink(missing_ok=True)
