"""A remote client: its pictures, its states on its own disk, and its replies to messages.

Each pass adds a version of its state, and the server says which versions it may still ask for. So a request is always
carried out from the very state that it names: once more if a reply was lost or the server fell back to its last
checkpoint, and as if nothing had happened if a reply came too late to count.
"""

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
from ..simulation.build import Experiment
from . import messages

log = logging.getLogger("fedtailor.site")
INVITATION = "invitation.safetensors"
STATE = re.compile(r"state-(\d+)-\w+-\d+")
DIGEST = 32  # bytes at the head of a state file: the hash of the rest
HEADING = {"run", "client", "request_id"}  # what a reply repeats of its request


@dataclass(frozen=True)
class Session:
    """What a client works with in one run."""

    who: int  # its number in the run
    job: Job
    data: Samples
    tests: EvalSet  # its own
    truths: Indices | None  # of its training pictures, to measure pseudo-labels by; no pass can see them
    threads: int

    @cached_property
    def zero_shot(self) -> Score:
        return score_zero_shot(self.job, self.tests)[0]

    def pseudo_labels(self, client: ClientState) -> Tally | None:
        if self.job.labeler is None or self.truths is None:
            return None
        none = torch.empty(0, dtype=torch.int64)
        picture, y = (client.memory.get(name, none).numpy() for name in (INDEX, LABEL))
        return tally(self.truths, picture, y, np.ones(len(self.truths), bool))


def simulated_session(experiment: Experiment, k: int) -> Session:
    truths = experiment.federation.dataset.train.labels
    mine = None if truths is None else truths[experiment.federation.shares[k].train]
    tests = experiment.tests.of_client(k)
    return Session(k, experiment.job, experiment.client_data[k], tests, mine, experiment.run.threads)


class Refused(UserError):  # noqa: N818  # as it reads
    def __init__(self, why: messages.RefusalCode, text: str) -> None:
        super().__init__(text)
        self.why = why


class RemoteClient:
    def __init__(self, folder: Path, make_session: Callable[[messages.Invitation], Session]) -> None:
        self.folder = folder
        self.make_session = make_session  # a UserError from it says why this client cannot take part
        self.sessions: dict[str, Session] = {}

    def handle(self, data: bytes) -> bytes:
        """The reply to any message. Whatever goes wrong becomes a refusal, and the client lives on."""
        request_id = ""
        try:
            message, tensors = messages.decode(data)
            request_id = message.request_id if isinstance(message, messages.Numbered) else ""
            if isinstance(message, messages.Invitation):
                return self.join(message)
            if isinstance(message, messages.PassRequest):
                return self.run_pass(message, tensors)
            if isinstance(message, messages.EvaluateRequest):
                return self.evaluate(message, tensors)
            raise UserError("this message is not for clients")
        except Exception as error:
            why: messages.RefusalCode = error.why if isinstance(error, Refused) else "failed"
            told = str(error) if isinstance(error, UserError | OSError) else f"{type(error).__name__}: {error}"
            log.warning("%s: %s", why, told, exc_info=error if why == "failed" else None)
            return messages.encode(messages.Refusal(request_id=request_id, why=why, text=told[: messages.MAX_TEXT]))

    def join(self, invitation: messages.Invitation) -> bytes:
        """Get ready for a run: CLIP loaded, pictures encoded. The invitation is kept for the next start."""
        session = self.open_session(invitation)
        folder = self.folder / invitation.run
        folder.mkdir(parents=True, exist_ok=True)
        write_atomic(folder / INVITATION, messages.encode(invitation))
        samples, tests = len(session.data), len(session.tests.labels)
        log.info("run %s: ready, %d images to train on, %d to test", invitation.run[:8], samples, tests)
        return messages.encode(messages.Ready(samples=samples, tests=tests))

    def open_session(self, invitation: messages.Invitation) -> Session:
        if (theirs := invitation.version) != __version__:
            text = f"this client has fedtailor {__version__}, the server {theirs}; install the same on both"
            raise Refused("unfit", text)
        try:
            self.sessions = {invitation.run: self.make_session(invitation)}  # of one run at a time: it holds CLIP
        except UserError as error:
            raise Refused("unfit", str(error)) from error
        return self.sessions[invitation.run]

    def session(self, request: messages.Request) -> Session:
        session = self.sessions.get(request.run) or self.reopen_session(request.run)
        if request.client != session.who:
            raise UserError(f"a message for client {request.client} came to client {session.who}")
        return session

    def reopen_session(self, run: str) -> Session:
        """After a restart, by the invitation that was kept."""
        try:
            invitation = messages.decode((self.folder / run / INVITATION).read_bytes())[0]
        except (FileNotFoundError, UserError):
            invitation = None  # a damaged one is as good as none: it will be sent again
        if not isinstance(invitation, messages.Invitation) or invitation.run != run:
            raise Refused("unknown-run", "this client has no invitation to the run")
        return self.open_session(invitation)

    def run_pass(self, request: messages.PassRequest, tensors: messages.TensorGroups) -> bytes:
        session, states = self.session(request), StateFiles(self.folder / request.run)
        before = states.read(request.version, request.state_id)
        task = Task(request.pass_name, request.round, tensors["params"], tensors["inbox"])
        torch.set_num_threads(session.threads)
        began, job = time.perf_counter(), session.job
        reply, after = client_step(job, session.who, job.find_pass(task.pass_name), task, before, session.data)
        states.write(replace(after, state_id=request.request_id))
        states.forget(below=request.kept)
        took = round(time.perf_counter() - began, 4)
        log.info("run %s, round %d: %s, %.1f s", request.run[:8], request.round + 1, request.pass_name, took)
        told = {"version": after.version, "samples": len(session.data), "seconds": took, "weight": reply.weight}
        message = messages.PassReply(**request.model_dump(include=HEADING) | told)
        return messages.encode(message, params=reply.params, stats=reply.stats)

    def evaluate(self, request: messages.EvaluateRequest, tensors: messages.TensorGroups) -> bytes:
        session = self.session(request)
        client = StateFiles(self.folder / request.run).read(request.version, request.state_id)
        server = Server(0, tensors["params"])  # here there is one client, number 0
        torch.set_num_threads(session.threads)
        message = messages.EvaluateReply(
            **request.model_dump(include=HEADING),
            personal=score_client(session.job, server, 0, client, session.tests),
            shared=score_shared(session.job, server, session.tests),
            zero_shot=session.zero_shot,
            pseudo=session.pseudo_labels(client),
        )
        return messages.encode(message)


@dataclass(frozen=True)
class StateFiles:
    """A client's states in one run, a file each, whole or not there.

    Named by version and by the request that made it: an old request that comes late cannot overwrite what counts.
    """

    folder: Path

    def path(self, version: int, state_id: str) -> Path:
        return self.folder / f"state-{version}-{state_id}"

    def read(self, version: int, state_id: str) -> ClientState:
        if version == 0:
            return ClientState()
        path = self.path(version, state_id)
        data = path.read_bytes() if path.is_file() else b""
        if not data or hashlib.sha256(data[DIGEST:]).digest() != data[:DIGEST]:
            held = ", ".join(str(version) for version, _ in self.held()) or "none"
            text = f"state {version} is {'damaged' if data else 'not here'}; of this run there are: {held}"
            raise Refused("lost-state", text)
        return client_from_bytes(data[DIGEST:])

    def write(self, client: ClientState) -> None:
        data = client_to_bytes(client)
        write_atomic(self.path(client.version, client.state_id), hashlib.sha256(data).digest() + data)

    def held(self) -> list[tuple[int, Path]]:
        return sorted((int(name[1]), path) for path in self.folder.glob("*") if (name := STATE.fullmatch(path.name)))

    def forget(self, below: int) -> None:
        for version, path in self.held():
            if version < below:
                path.unlink(missing_ok=True)
