"""A remote client: its pictures, its states on its own disk, and its replies to messages.

Each pass adds a version of its state, and the server says which versions it may still ask for. So a request is always
carried out from the very state that it names: once more if a reply was lost or the server fell back to its last
checkpoint, and as if nothing had happened if a reply came too late to count.
"""

import hashlib
import logging
import os
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from torch import Tensor

from ..base.errors import UserError
from ..base.files import make_folder, write_atomic
from ..base.sizes import size
from ..base.version import __version__
from ..client.codec import client_from_bytes, client_to_bytes
from ..client.data import ClientData
from ..client.job import ClientState, Job, Task
from ..client.step import client_step
from ..core.types import FIXED, LOCAL, Params, Reply, Server
from ..data.dataset import Indices
from ..evaluation.metrics import Score
from ..evaluation.pseudo_labels import Tally, tally
from ..evaluation.testing import EvalSet, score_client, score_shared, score_zero_shot
from ..labelers.base import INDEX, LABEL
from ..settings.run import Run
from ..simulation.build import Experiment
from . import messages
from .audit import AuditLog
from .policy import Permission, SitePolicy, noise_of
from .refusal import Refused, code_of
from .spending import Spending
from .vault import Vault, what_is_sent

log = logging.getLogger("fedtailor.site")
INVITATION = "invitation.safetensors"
STATE = re.compile(r"state-(\d+)-\w+-\d+")
DIGEST = 32  # bytes at the head of a state file: the hash of the rest
WAITING = "waiting for a run"
MOST_STATES = 32  # of a run: a round needs a few, and another few with each attempt at it
MOST_TOLD = 2000  # characters of why something was refused
MODELS = {"zero_shot": "CLIP as it is", "global": "the shared model", "personal": "this site's own"}
HEADING = {"run", "client", "request_id"}  # what a reply repeats of its request


# Where to, what the server has for it, and its state at the end; returns how the model does on its own tests.
SaveModel = Callable[[Path, Server, ClientState], dict[str, Any]]


@dataclass(frozen=True)
class Session:
    """What a client works with in one run."""

    who: int  # its number in the run
    job: Job
    data: ClientData
    tests: EvalSet  # its own
    truths: Indices | None  # of the pictures that a labeler labels, to measure pseudo-labels by; no pass can see them
    threads: int
    save: SaveModel | None = None  # writes its model folder; None: a simulation's clients have none
    name: str = ""  # of the run

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
    tests = experiment.tests.of_client(k)
    truths = experiment.federation.truths(k)
    return Session(k, experiment.job, experiment.client_data[k], tests, truths, experiment.run.threads)


@dataclass(frozen=True)
class Answer:
    """What is about to leave, and what the site's log says of it."""

    message: messages.Message
    tensors: messages.TensorGroups = field(default_factory=dict)
    privacy: dict[str, Any] | None = None  # what was done to it
    secure: dict[str, Any] | None = None  # the secure sum that it is a part of, and among whom
    detail: str = ""  # of a refusal: for this site alone
    told: str = ""  # what was done, in words, for the terminal


Order = bytes | Refused  # a message, or why it was not put together
MakeSession = Callable[[messages.Invitation, Run], Session]  # a UserError from it says why this client cannot take part


class RemoteClient:
    def __init__(
        self,
        folder: Path,
        make_session: MakeSession,
        policy: SitePolicy,
        server: str,
        key: EllipticCurvePrivateKey | None = None,
        models: Path | None = None,
    ) -> None:
        """`server`: whom it replies to, for the log. `key`: the site's own, by which others know its keys in a sum.
        `models`: where models of finished runs go."""
        self.folder, self.make_session, self.key = folder, make_session, key
        self.models = models or folder / "models"
        self.permission = Permission(policy, Spending(folder / "spent.json"))
        self.audit = AuditLog(folder / "audit", server)
        self.sessions: dict[str, Session] = {}

    def handle(self, data: Order) -> bytes:
        """The reply to any message. Whatever goes wrong becomes a refusal, and the client lives on."""
        order: messages.Message | None = None
        try:
            if isinstance(data, Refused):
                raise data
            if len(data) > (most := self.permission.policy.megabytes_in * 1e6):
                raise Refused("too-large", f"a message of {len(data) / 1e6:.1f} MB; megabytes_in={most / 1e6:g}")
            order, tensors = self.read(data)
            return self.send(order, self.carry_out(order, tensors))
        except Exception as error:
            return self.refuse(error, order)

    def refuse(self, error: Exception, order: messages.Message | None = None) -> bytes:
        """The reply to what is not done: a code, and nothing of what it is about."""
        why = code_of(error)
        detail = str(error) if isinstance(error, UserError | OSError) else f"{type(error).__name__}: {error}"
        facts = {**self.order_told(order), "why": why}
        words = (
            f"{self.about(order)}: refused ({why}), {detail}" if order else f"a message is refused ({why}): {detail}"
        )
        log.warning("%s", words, exc_info=error if why == "failed" else None, extra={"facts": facts, "now": WAITING})
        request_id = order.request_id if isinstance(order, messages.Numbered) else ""
        refusal = messages.Refusal(request_id=request_id, why=why, version=__version__ if why == "version" else "")
        return self.send(order, Answer(refusal, detail=detail))

    def send(self, order: messages.Message | None, answer: Answer) -> bytes:
        """The only way out: what leaves is what the log has a line of."""
        data = messages.encode(answer.message, **answer.tensors)
        if len(data) > (most := self.permission.policy.megabytes_out * 1e6):
            raise Refused("too-large", f"a reply of {len(data) / 1e6:.1f} MB; megabytes_out={most / 1e6:g}")
        self.permission.spent.save()
        told = self.order_told(order)
        self.audit.add(
            **told,
            what=answer.message.kind,
            bytes=len(data),
            sha256=hashlib.sha256(data).hexdigest(),
            tensors=[
                described(f"{group}/{n}", v) for group, params in answer.tensors.items() for n, v in params.items()
            ],
            privacy=answer.privacy,
            secure=answer.secure,
            why=answer.message.why if isinstance(answer.message, messages.Refusal) else None,
            detail=answer.detail[:MOST_TOLD],
        )
        if answer.told:
            facts = {**told, "what": answer.message.kind, "bytes": len(data)}
            now = f"{self.name_of(order)}: waiting for what is next"
            now = WAITING if isinstance(answer.message, messages.ModelReply) else now
            log.info("%s; %s to the server", answer.told, size(len(data)), extra={"facts": facts, "now": now})
        return data

    def name_of(self, order: messages.Message | None) -> str:
        """What people call the run that an order is about."""
        if isinstance(order, messages.Invitation):
            return order.name or order.run[:8]
        run = order.run if isinstance(order, messages.Numbered) else ""
        return self.sessions[run].name if run in self.sessions else run[:8]

    def about(self, order: messages.Message) -> str:
        """An order in words: capt-1, round 3 of 20: train."""
        what = order.kind.removesuffix("-request")
        if not isinstance(order, messages.AnyPassRequest):
            return f"{self.name_of(order)}: {what}"
        session = self.sessions.get(order.run)
        of = f" of {session.job.rounds + session.job.method.closing}" if session else ""
        return f"{self.name_of(order)}, round {order.round + 1}{of}: {order.pass_name}"

    def order_told(self, order: messages.Message | None) -> dict[str, Any]:
        """What a reply was asked for by; nothing, if that could not be read."""
        told = {"order": "kind", "run": "run", "pass": "pass_name", "round": "round"}
        facts = {name: getattr(order, attribute, None) for name, attribute in told.items()}
        facts["name"] = self.name_of(order) or None
        return facts if facts["round"] is None else {**facts, "round": facts["round"] + 1}

    def read(self, data: bytes) -> tuple[messages.Message, messages.TensorGroups]:
        try:
            order, tensors = messages.decode(data)
        except UserError as error:
            if theirs := messages.version_of(data):
                check_version(theirs)
            raise Refused("unreadable", str(error)) from error
        return order, tensors

    def carry_out(self, order: messages.Message, tensors: messages.TensorGroups) -> Answer:
        if isinstance(order, messages.Invitation):
            return self.join(order)
        if isinstance(order, messages.Request):
            session = self.session(order)
            self.permission.to_do(order, session.job)
            if "params" in tensors:
                check_shared(session.job, tensors["params"])
                torch.set_num_threads(session.threads)
            log.debug("%s: begins", self.about(order), extra={"now": self.about(order)})
            if isinstance(order, messages.PassRequest):
                return self.run_pass(order, session, tensors)
            if isinstance(order, messages.SumRequest):
                return self.take_step(order, session, tensors)
            if isinstance(order, messages.EvaluateRequest):
                return self.evaluate(order, session, tensors)
            if isinstance(order, messages.ModelRequest):
                return self.keep_model(order, session, tensors)
        raise Refused("unreadable", f"a {order.kind} is not for clients")

    def join(self, invitation: messages.Invitation) -> Answer:
        """Get ready for a run: CLIP loaded, pictures encoded. The invitation is kept for the next start."""
        name = self.name_of(invitation)
        log.info("%s: invited to this run of the server's", name, extra={"now": f"{name}: getting ready"})
        session = self.open_session(invitation)
        folder = self.folder / invitation.run
        make_folder(folder)
        write_atomic(folder / INVITATION, messages.encode(invitation))
        samples, tests = len(session.data), len(session.tests.labels)
        told = f"{name}: ready, {samples} images to train on, {tests} to test, CLIP {invitation.weights[:12]}"
        return Answer(messages.Ready(samples=samples, tests=tests), told=told)

    def open_session(self, invitation: messages.Invitation) -> Session:
        check_version(invitation.version)
        run = self.permission.to_join(invitation)
        try:
            session = replace(self.make_session(invitation, run), name=invitation.name or invitation.run[:8])
        except UserError as error:
            raise Refused(code_of(error, otherwise="settings"), str(error)) from error
        self.sessions = {invitation.run: session}  # of one run at a time: it holds CLIP
        return session

    def session(self, request: messages.Request) -> Session:
        session = self.sessions.get(request.run) or self.reopen_session(request.run)
        if request.client != session.who:
            raise Refused("unreadable", f"a message for client {request.client} came to client {session.who}")
        return session

    def reopen_session(self, run: str) -> Session:
        """After a restart, by the invitation that was kept; one of another version's server is sent again, too."""
        try:
            invitation = messages.decode((self.folder / run / INVITATION).read_bytes())[0]
        except (FileNotFoundError, UserError):
            invitation = None  # a damaged one is as good as none: it will be sent again
        due = run, __version__
        if not isinstance(invitation, messages.Invitation) or (invitation.run, invitation.version) != due:
            raise Refused("unknown-run", "this client has no invitation to the run")
        return self.open_session(invitation)

    def run_pass(self, request: messages.PassRequest, session: Session, tensors: messages.TensorGroups) -> Answer:
        if session.job.secure:
            raise Refused(
                "beyond", "a pass whose reply the server would see, in a run whose replies it sees the sum of"
            )
        reply, facts, told = self.carried_out(request, session, tensors)
        message = messages.PassReply(**facts, weight=reply.weight)
        return Answer(message, {"params": reply.params, "stats": reply.stats}, privacy_of(session.job), told=told)

    def take_step(self, order: messages.SumRequest, session: Session, tensors: messages.TensorGroups) -> Answer:
        """Of a secure sum."""
        job, policy = session.job, self.permission.policy
        if not job.secure:
            raise Refused("beyond", "a secure sum, in a run with secure=none")
        vault = Vault(self.folder / order.run, order, job.secure, job.clients, policy, self.key)
        if isinstance(order, messages.MaskedRequest):
            message = vault.answered() or self.run_masked(order, session, tensors, vault)
        else:
            message = vault.answered() or vault.answer(order)
        masked = isinstance(message, messages.MaskedReply)
        groups = {"masked": {"words": torch.from_numpy(vault.words.view(np.int64))}} if masked else {}
        about = {"sum": order.masking, "among": vault.neighbours}
        told = f"{self.about(order)}, masked" if masked else ""
        return Answer(message, groups, privacy_of(job) if masked else None, about, told=told)

    def run_masked(
        self, request: messages.MaskedRequest, session: Session, tensors: messages.TensorGroups, vault: Vault
    ) -> messages.MaskedReply:
        """A pass whose reply leaves under masks."""
        job = session.job
        vault.receive_shares(request)
        layout = job.layout(tensors["params"], request.pass_name)
        reply, facts, _ = self.carried_out(request, session, tensors)
        try:
            words = layout.encoded(replace(reply, weight=1.0) if job.method.evenly else reply)
        except UserError as error:
            raise Refused("range", str(error)) from error
        message = messages.MaskedReply(**facts)
        vault.keep_masked(words, message, what_is_sent(request.masking, tensors))
        return message

    def carried_out(
        self, request: messages.AnyPassRequest, session: Session, tensors: messages.TensorGroups
    ) -> tuple[Reply, dict[str, Any], str]:
        """The reply to a pass, what is told of it, and in words; the state after it is on the disk."""
        states, job = StateFiles(self.folder / request.run), session.job
        before = states.read(request.version, request.state_id)
        task = Task(request.pass_name, request.round, tensors["params"], tensors["inbox"])
        began, minutes = time.perf_counter(), self.permission.policy.minutes
        data = session.data.until(time.monotonic() + 60 * minutes) if minutes else session.data
        pass_, secret = job.find_pass(task.pass_name), job.privacy.secret(states.folder) if job.privacy else b""
        reply, after = client_step(job, session.who, pass_, task, before, data, secret)
        self.permission.released(request, reply, job)
        again = any(version > request.version for version, _ in states.held())
        states.write(replace(after, state_id=request.request_id))
        states.forget(below=request.kept)
        took = round(time.perf_counter() - began, 4)
        facts = {"version": after.version, "samples": len(session.data), "seconds": took}
        told = f"{self.about(request)}{', asked again,' if again else ''} took {took:.1f} s"
        return reply, request.model_dump(include=HEADING) | facts, told

    def evaluate(self, request: messages.EvaluateRequest, session: Session, tensors: messages.TensorGroups) -> Answer:
        client = StateFiles(self.folder / request.run).read(request.version, request.state_id)
        server = Server(0, tensors["params"])  # here there is one client, number 0
        message = messages.EvaluateReply(
            **request.model_dump(include=HEADING),
            personal=score_client(session.job, server, 0, client, session.tests),
            shared=score_shared(session.job, server, session.tests),
            zero_shot=session.zero_shot,
            pseudo=session.pseudo_labels(client),
        )
        return Answer(message, told=f"{self.about(request)}: own model {percent(message.personal.overall)}")

    def keep_model(self, request: messages.ModelRequest, session: Session, tensors: messages.TensorGroups) -> Answer:
        """What the run has come to, as a model folder of the site's own."""
        if session.save is None:
            raise Refused("beyond", "clients of a simulation keep no models")
        params, cluster = tensors["params"], tensors["cluster"]
        check_cluster(session.job, cluster)
        if any(not torch.isfinite(value).all() for value in (*params.values(), *cluster.values())):
            raise Refused("beyond", "the server sent a model with numbers that are none")
        try:
            client = StateFiles(self.folder / request.run).read(request.version, request.state_id)
        except Refused as lost:
            if not params:
                raise Refused("failed", f"there is nothing to make a model of: {lost}") from None
            log.warning("%s: %s; the model is what all share", session.name, lost)
            client = ClientState()
        make_folder(self.models)
        to = self.models / f"{session.name}-{request.run[:8]}"
        scores = session.save(to, server_of_one(session.job, params, cluster), client)
        told = f"{session.name}: finished; the model is in {to}{in_words(scores)}"
        return Answer(messages.ModelReply(**request.model_dump(include=HEADING)), told=told)


def server_of_one(job: Job, params: Params, cluster: Params) -> Server:
    """A server with what it has for a single client, number 0: what all share, and what its clusters have otherwise."""
    copies: dict[str, Params] = {}
    for name, value in cluster.items():
        copies.setdefault(job.scopes[name].cluster, {})[name] = value
    clusters = {clustering: {0: copy} for clustering, copy in copies.items()}
    return Server(job.rounds, params, clusters, {clustering: {0: 0} for clustering in clusters})


def in_words(scores: Mapping[str, Any]) -> str:
    """How accurate a model is on the site's own test pictures, and was before."""
    count, overall = sum(scores["pictures"].values()), {name: scores[name]["overall"] for name in MODELS}
    told = ", ".join(f"{what} {percent(overall[name])}" for name, what in MODELS.items() if overall[name] is not None)
    return f"; accuracy on {count} test pictures here: {told}" if told else ""


def percent(overall: float | None) -> str:
    return "not measured, for lack of test pictures" if overall is None else f"{overall:.1f}%"


def check_version(theirs: str) -> None:
    if theirs != __version__:
        raise Refused("version", f"this client has fedtailor {__version__}, the server {theirs}")


def check_shared(job: Job, params: Params) -> None:
    """What a server sends of the model is what it has of it: each parameter in its own shape and type."""
    shared = [name for name, scope in job.scopes.items() if scope not in (LOCAL, FIXED)]
    if extra := params.keys() ^ set(shared):
        raise Refused("beyond", f"the server is to send {', '.join(shared)}; {min(extra)} is amiss")
    check_forms(job, params)


def check_cluster(job: Job, params: Params) -> None:
    """What clusters have otherwise is of those parameters that clusters may have."""
    clustered = [name for name, scope in job.scopes.items() if scope.cluster]
    if extra := params.keys() - set(clustered):
        raise Refused("beyond", f"of clusters the server may send {', '.join(clustered)}, not {min(extra)}")
    check_forms(job, params)


def check_forms(job: Job, params: Params) -> None:
    for name, value in params.items():
        if (value.shape, value.dtype) != (job.start[name].shape, job.start[name].dtype):
            got, due = (f"{tuple(it.shape)} in {it.dtype}" for it in (value, job.start[name]))
            raise Refused("beyond", f"the server sent {name} as {got}, not {due}")


def privacy_of(job: Job) -> dict[str, Any] | None:
    """What was done to a reply before it left."""
    if job.privacy is None:
        return None
    return {"mechanism": type(job.privacy).__name__.lower(), "noise": noise_of(job.privacy, job.cohort)}


def described(name: str, value: Tensor) -> dict[str, Any]:
    """A tensor without its values."""
    raw = value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes() if value.numel() else b""
    kind = str(value.dtype).removeprefix("torch.")
    return {"name": name, "shape": list(value.shape), "dtype": kind, "sha256": hashlib.sha256(raw).hexdigest()}


def touch(path: Path) -> None:
    """By a clock that tells apart what the file system's own takes for one moment."""
    now = time.time_ns()
    os.utime(path, ns=(now, now))


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
        touch(path)  # in use: it is not the next to be forgotten
        return client_from_bytes(data[DIGEST:])

    def write(self, client: ClientState) -> None:
        data = client_to_bytes(client)
        path = self.path(client.version, client.state_id)
        write_atomic(path, hashlib.sha256(data).digest() + data)
        touch(path)

    def held(self) -> list[tuple[int, Path]]:
        return sorted((int(name[1]), path) for path in self.folder.glob("*") if (name := STATE.fullmatch(path.name)))

    def forget(self, below: int) -> None:
        """Those that the server will not ask for again; and, whatever it says, all but those that were used last."""
        for version, path in self.held():
            if version < below:
                path.unlink(missing_ok=True)
        for _, path in sorted(self.held(), key=lambda it: it[1].stat().st_mtime_ns)[:-MOST_STATES]:
            path.unlink(missing_ok=True)
