"""The meaning of `each` for clients that are elsewhere: orders by post, answers by a deadline.

Here it is decided what counts. The server's ledger holds, of every client, which of its states the last counted answer
left. An answer that is late, garbled, unfit or to another order is as if it had never been, at the client too: its next
order names the state from before.
"""

from __future__ import annotations

import math
import secrets
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np

from ..base.errors import UserError
from ..client.job import ClientState, Job, Task
from ..client.step import check_reply, client_step, decompressed, reply_bytes
from ..core.types import OWN, Params, Pass, Reply, Samples, Server
from ..evaluation.metrics import mean_score, score
from ..evaluation.pseudo_labels import Quality, in_percent
from ..evaluation.testing import score_shared
from ..settings.round_policy import RoundPolicy
from ..simulation.build import Experiment
from ..simulation.engine import Engine, Evaluation, StepLog, TooFewReplies
from .messages import (
    EvaluateReply,
    EvaluateRequest,
    Invitation,
    Message,
    Numbered,
    PassReply,
    PassRequest,
    Ready,
    Refusal,
    TensorGroups,
    decode_message,
    encode_message,
)

PAUSE = 0.02, 0.5  # seconds between two looks into an empty letter box: the first, and at most
NOT_NEEDED = "not needed: enough others had answered"
Step = Literal["again", "wait", "done"]  # write to a client again, wait for it, or be done with it, well or badly


@dataclass(frozen=True)
class Received:
    """What came from a client: a letter, or trouble. `gone`: it was not there, and may come back."""

    client: int
    data: bytes = b""
    trouble: str = ""
    gone: bool = False


class Transport(Protocol):
    """Carries letters. It may lose them, take long, and bring them in any order."""

    def here(self) -> Collection[int]:
        """The clients that can be written to now."""
        ...

    def send(self, kind: str, round_: int, letters: Mapping[int, bytes]) -> None: ...
    def fetch(self) -> Iterable[Received]: ...
    def close(self) -> None: ...


@dataclass
class Exchange:
    """One letter to each of some clients, and what becomes of it."""

    kind: str
    round: int
    waiting: set[int]
    enough: int  # answers
    write: Callable[[int], tuple[Numbered, TensorGroups]] | None = None  # None: the charter, which comes first, is all
    take: Callable[[int, Message, TensorGroups], None] | None = None  # an error says why an answer does not count
    sent: dict[int, tuple[str, bytes]] = field(default_factory=dict)  # serial and letter; sent again as they are
    again: dict[int, int] = field(default_factory=dict)  # how often a client has made us write again
    taken: set[int] = field(default_factory=set)
    trouble: dict[int, str] = field(default_factory=dict)
    unfit: set[int] = field(default_factory=set)
    stale: set[int] = field(default_factory=set)  # who has answered earlier letters meanwhile

    def letter(self, k: int) -> bytes:
        if k not in self.sent:
            assert self.write is not None
            letter, tensors = self.write(k)
            self.sent[k] = letter.serial, encode_message(letter, **tensors)
        return self.sent[k][1]

    @property
    def over(self) -> bool:
        return not self.waiting or len(self.taken) >= self.enough


class RemoteEngine(Engine):
    def __init__(
        self,
        job: Job,
        plan: RoundPolicy,
        post: Transport,
        charter: Invitation,  # whoever it is addressed to
        clients: Mapping[int, ClientState] | None = None,
        own: Samples | None = None,  # the server's own data, which it visits itself
        clock: Callable[[], float] = time.monotonic,
        wait: Callable[[float], object] = time.sleep,
    ) -> None:
        super().__init__(job, {k: ClientState() for k in range(job.clients)} | dict(clients or {}))
        self.plan, self.post, self.charter, self.own = plan, post, charter, own
        self.clock, self.wait, self.oversample = clock, wait, plan.oversample
        self.told: set[int] = set()  # who has had the charter from this process
        self.start, self.count = secrets.token_hex(4), 0  # of serial numbers
        self.marks: dict[int, EvaluateReply] = {}  # of the last exam
        self.absent: set[int] = set()  # who did not answer when asked last
        self.begin_round((), 0)
        self.committed()

    def committed(self) -> None:
        self.kept = {k: client.version for k, client in self.clients.items()}

    def close(self) -> None:
        self.post.close()

    def open(self) -> None:
        """Tell every client of the run. All that are there must be fit for it, and there must be a quorum of them."""
        K = self.job.clients
        mail = self.exchange(Exchange("query.charter", 0, set(range(K)), K))
        told = "; ".join(f"client {k}: {why}" for k, why in sorted(mail.trouble.items()))
        if mail.unfit:
            raise UserError(f"not all clients can take part in this run ({told})")
        if len(mail.taken) < self.quorum(K):
            raise UserError(f"only {len(mail.taken)} of {K} clients are ready ({told}); start the others")

    # --- a round ----------------------------------------------------------------------------------------------------

    def begin_round(self, invited: Collection[int], wanted: int) -> None:
        self.invited, self.wanted = set(invited), wanted
        self.out: set[int] = set()  # whom this round goes on without

    def __call__(
        self, pass_: Pass, server: Server, cohort: Sequence[int], inbox: Mapping[int, Params] | None = None
    ) -> dict[int, Reply]:
        tasks = self.tasks(pass_, server, cohort, inbox)
        own = {OWN: self.visit_own(pass_, tasks.pop(OWN))} if OWN in tasks else {}
        return {**own, **self.ask(tasks, self.job.pass_name(pass_), server.round)} if tasks else own

    def visit_own(self, pass_: Pass, task: Task) -> Reply:
        if self.own is None:
            raise UserError("this method asks the server for data of its own; see data.server")
        packed, self.clients[OWN] = client_step(
            self.job, OWN, pass_, task, self.clients.get(OWN, ClientState()), self.own
        )
        return decompressed(self.job, task, packed)

    def ask(self, tasks: Mapping[int, Task], address: str, round_: int) -> dict[int, Reply]:
        """The replies of those who are still in the round; too few are an error."""
        replies: dict[int, Reply] = {}
        counted: dict[int, StepLog] = {}
        before = dict(self.clients)

        def write(k: int) -> tuple[PassRequest, TensorGroups]:
            task, client = tasks[k], self.clients[k]
            order = PassRequest(
                **self.addressed(k),
                version=client.version,
                mark=client.mark,
                kept=min(self.kept[k], client.version),
                pass_name=task.pass_name,
                round=task.round,
            )
            return order, {"params": task.params, "inbox": task.inbox}

        def take(k: int, letter: Message, tensors: TensorGroups) -> None:
            if not isinstance(letter, PassReply):
                raise UserError("it sent no answer to an order")
            packed = Reply(tensors["params"], letter.weight, tensors["stats"])
            reply = decompressed(self.job, tasks[k], packed)
            check_reply(tasks[k], reply, "its answer")
            if letter.version != self.clients[k].version + 1:
                raise UserError(f"its answer is of state {letter.version}, not of {self.clients[k].version + 1}")
            replies[k], self.clients[k] = reply, ClientState(version=letter.version, mark=letter.serial)
            up, down = reply_bytes(packed), tasks[k].bytes
            counted[k] = StepLog(round_, k, address, letter.samples, letter.weight, down, up, letter.seconds)

        began = self.clock()
        enough = min(self.wanted, len(tasks)) if self.invited.issuperset(tasks) else len(tasks)
        mail = self.exchange(Exchange("train.order", round_, tasks.keys() - self.out, enough, write, take))
        took = round(self.clock() - began, 4)
        for k in with_unusual_stats(replies):
            mail.trouble[k] = "its answer has statistics of another shape than the others' have"
            self.clients[k] = before[k]
            del replies[k], counted[k]
        self.log += counted.values()
        for k, why in sorted(mail.trouble.items()):
            self.log.append(StepLog(round_, k, address, 0, 0.0, tasks[k].bytes, 0, took, why))
        self.out |= mail.trouble.keys()
        if len(replies) < (needed := self.quorum(enough)):
            raise TooFewReplies(f"{len(replies)} of {len(tasks)} clients answered, {needed} are needed (plan.quorum)")
        return replies

    def quorum(self, of: int) -> int:
        return max(1, math.ceil(self.plan.quorum * of - 1e-9))

    # --- tests ------------------------------------------------------------------------------------------------------

    def evaluate(self, experiment: Experiment, server: Server) -> Evaluation:
        """Every client tests its own model; one that does not answer in time, or has been away, has no score."""
        self.marks = {}

        def write(k: int) -> tuple[EvaluateRequest, TensorGroups]:
            client = self.clients[k]
            exam = EvaluateRequest(**self.addressed(k), version=client.version, mark=client.mark)
            return exam, {"params": server.params_for(k, self.job.scopes)}

        def take(k: int, letter: Message, tensors: TensorGroups) -> None:
            if not isinstance(letter, EvaluateReply):
                raise UserError("it sent no marks for an exam")
            scores = letter.personal, letter.shared, letter.zero_shot
            if any(len(it.per_class) != experiment.groups.classes for it in scores):
                raise UserError(f"its marks are no scores of {experiment.groups.classes} classes")
            self.marks[k] = letter

        K, last = self.job.clients, server.round - 1
        there = set(range(K)) - self.absent.difference(self.post.here() if self.absent else ())
        mail = self.exchange(Exchange("evaluate.exam", last, there, K, write, take))
        for k, why in sorted(mail.trouble.items()):
            self.log.append(StepLog(last, k, "exam", 0, 0.0, 0, 0, 0.0, why))
        none = score(np.empty(0, np.int64), np.empty(0, np.int64), experiment.groups)
        clients = [self.marks[k].personal if k in self.marks else none for k in range(K)]
        untuned = mean_score([marks.zero_shot for marks in self.marks.values()]) if self.marks else None
        if len(experiment.tests.labels) or not self.marks:
            return Evaluation(score_shared(experiment.job, server, experiment.tests), clients, untuned)
        return Evaluation(mean_score([marks.shared for marks in self.marks.values()]), clients, untuned)

    def pseudo_labels(self, experiment: Experiment) -> Quality | None:
        """As of the last exam."""
        counts = [marks.pseudo for marks in self.marks.values() if marks.pseudo is not None]
        if not counts:
            return None
        labels, right, labelled, samples = (sum(column) for column in zip(*counts, strict=True))
        return in_percent((labels, right, labelled, samples))

    # --- the post ---------------------------------------------------------------------------------------------------

    def addressed(self, k: int) -> dict[str, Any]:
        self.count += 1
        return {"run": self.charter.run, "client": k, "serial": f"{self.start}-{self.count}"}

    def charter_for(self, k: int) -> bytes:
        return encode_message(self.charter.model_copy(update={"client": k}))

    def exchange(self, mail: Exchange) -> Exchange:
        """Write to all, read what comes, until all or enough have answered or time is up."""
        unsent, pause, ends = set(mail.waiting), PAUSE[0], self.clock() + self.plan.deadline
        while not mail.over:
            if ready := unsent.intersection(self.post.here()) if unsent else set():
                new = ready - self.told
                self.post.send("query.charter", mail.round, {k: self.charter_for(k) for k in sorted(new)})
                self.post.send(mail.kind, mail.round, {k: mail.letter(k) for k in sorted(ready - new)})
                unsent -= ready
            quiet = True
            for arrival in self.post.fetch():
                k = arrival.client
                if k not in mail.waiting or mail.over:
                    continue
                step = self.receive(mail, arrival)
                quiet = quiet and arrival.gone  # who is not there may be tried again, but not at once
                if step == "again":
                    unsent.add(k)
                if step == "done":
                    mail.waiting.discard(k)
                    unsent.discard(k)
            left = ends - self.clock()
            if left <= 0:
                break
            pause = min(2 * pause, PAUSE[1]) if quiet else PAUSE[0]
            if quiet and not mail.over:
                self.wait(min(pause, left))
        self.absent = (self.absent | mail.waiting) - mail.taken
        for k in mail.waiting:
            late = "late: no answer in time" + (", only to an earlier letter" if k in mail.stale else "")
            missed = "gone: it was not there, or left" if k in unsent else late
            mail.trouble[k] = NOT_NEEDED if len(mail.taken) >= mail.enough else missed
        return mail

    def receive(self, mail: Exchange, arrival: Received) -> Step:
        """What to do about a client that something came from; whatever is wrong with it, it is no more than that."""
        if arrival.gone:
            return "again"
        k = arrival.client
        try:
            step = self.read(mail, k, arrival)
        except StateLost:
            raise
        except Exception as error:  # what comes from elsewhere may be wrong in any way
            mail.trouble[k] = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
            return "done"
        if step == "done":
            mail.taken.add(k)
        return step

    def read(self, mail: Exchange, k: int, arrival: Received) -> Step:
        """What is not yet known to be a letter; an error if it is of no use."""
        if arrival.trouble:
            raise UserError(arrival.trouble)
        if len(arrival.data) > self.plan.limit * 1e6:
            raise UserError(
                f"an answer of {len(arrival.data) / 1e6:.1f} MB is more than plan.limit={self.plan.limit:g}"
            )
        letter, tensors = decode_message(arrival.data)
        serial = mail.sent[k][0] if k in mail.sent else ""
        if isinstance(letter, Ready):
            self.told.add(k)
            return self.patience(mail, k) if mail.write else "done"
        if isinstance(letter, Refusal):
            if letter.serial not in ("", serial):
                return self.aside(mail, k)
            if letter.why == "stranger":
                self.told.discard(k)
                return self.patience(mail, k)
            if letter.why == "lost":
                self.restart(mail, k, letter.text)
                return self.patience(mail, k)
            if letter.why == "unfit":
                mail.unfit.add(k)
            raise UserError(letter.text)
        if not isinstance(letter, Numbered) or (letter.run, letter.client) != (self.charter.run, k):
            raise UserError("it answered another letter than it was sent")
        if letter.serial != serial:
            return self.aside(mail, k)
        assert mail.take is not None
        mail.take(k, letter, tensors)
        return "done"

    def aside(self, mail: Exchange, k: int) -> Step:
        """It is about an earlier letter, which no longer counts; the answer that is due may be behind it."""
        mail.stale.add(k)
        return "wait"

    def patience(self, mail: Exchange, k: int) -> Step:
        mail.again[k] = mail.again.get(k, 0) + 1
        if mail.again[k] > 5:
            raise UserError("it asks for the same again and again")
        return "again"

    def restart(self, mail: Exchange, k: int, text: str) -> None:
        """A client has lost its state: stop, or let it begin anew and write that down."""
        if self.plan.lost == "stop":
            raise StateLost(
                f"client {k} has lost its state ({text}). Give it back its folder and resume the run, "
                "or resume with plan.lost=anew to let it begin anew"
            )
        self.clients[k] = ClientState()
        mail.sent.pop(k, None)
        why = f"began anew: {text}"
        self.log.append(StepLog(mail.round, k, mail.kind, 0, 0.0, 0, 0, 0.0, why))


def with_unusual_stats(replies: Mapping[int, Reply]) -> list[int]:
    """Whose statistics are not what most others call by the same name: a method's server would break on them.

    What a parameter's shape is, the server knows; of statistics only a method does.
    """
    forms = Counter((n, v.dtype, v.shape) for reply in replies.values() for n, v in reply.stats.items())
    usual: dict[str, object] = {}
    for (name, *form), _ in forms.most_common():
        usual.setdefault(name, form)
    return [k for k, reply in replies.items() if any([v.dtype, v.shape] != usual[n] for n, v in reply.stats.items())]


class StateLost(UserError):  # noqa: N818  # as it reads
    """A run cannot go on as if nothing had happened."""
