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
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np

from ..core import OWN, Params, Pass, Reply, Samples, Server
from ..diagnostics.labels import Quality, in_percent
from ..errors import UserError
from ..evaluate import score_shared
from ..letters import Addressed, Answer, Charter, Exam, Groups, Letter, Marks, Order, Present, Refusal, seal, unseal
from ..metrics import Score, mean_score, score
from ..plan import Plan
from ..visit import Client, Job, Task, check_reply, opened, reply_bytes, visit
from .base import Shortfall, Traffic, Visited

if TYPE_CHECKING:
    from ..setup import Setup

PAUSE = 0.02, 0.5  # seconds between two looks into an empty letter box: the first, and at most
NOT_NEEDED = "not needed: enough others had answered"
Step = Literal["again", "wait", "done"]  # write to a client again, wait for it, or be done with it, well or badly


@dataclass(frozen=True)
class Arrival:
    """What came from a client: a letter, or trouble. `gone`: it was not there, and may come back."""

    client: int
    data: bytes = b""
    trouble: str = ""
    gone: bool = False


class Post(Protocol):
    """Carries letters. It may lose them, take long, and bring them in any order."""

    def here(self) -> Collection[int]:
        """The clients that can be written to now."""
        ...

    def send(self, kind: str, round_: int, letters: Mapping[int, bytes]) -> None: ...
    def fetch(self) -> Iterable[Arrival]: ...
    def close(self) -> None: ...


@dataclass
class Mailing:
    """One letter to each of some clients, and what becomes of it."""

    kind: str
    round: int
    waiting: set[int]
    enough: int  # answers
    write: Callable[[int], tuple[Addressed, Groups]] | None = None  # None: the charter, which comes first, is all
    take: Callable[[int, Letter, Groups], None] | None = None  # an error says why an answer does not count
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
            self.sent[k] = letter.serial, seal(letter, **tensors)
        return self.sent[k][1]

    @property
    def over(self) -> bool:
        return not self.waiting or len(self.taken) >= self.enough


class RemoteEngine:
    def __init__(
        self,
        job: Job,
        plan: Plan,
        post: Post,
        charter: Charter,  # whoever it is addressed to
        clients: Mapping[int, Client] | None = None,
        own: Samples | None = None,  # the server's own data, which it visits itself
        clock: Callable[[], float] = time.monotonic,
        wait: Callable[[float], object] = time.sleep,
    ) -> None:
        self.job, self.plan, self.post, self.charter, self.own = job, plan, post, charter, own
        self.clients = {k: Client() for k in range(job.clients)} | dict(clients or {})
        self.clock, self.wait = clock, wait
        self.visits: list[Visited] = []
        self.traffic: list[Traffic] | None = None
        self.told: set[int] = set()  # who has had the charter from this process
        self.start, self.count = secrets.token_hex(4), 0  # of serial numbers
        self.marks: dict[int, Marks] = {}  # of the last exam
        self.absent: set[int] = set()  # who did not answer when asked last
        self.begin((), 0)
        self.saved()

    @property
    def oversample(self) -> float:
        return self.plan.oversample

    def saved(self) -> None:
        self.kept = {k: client.version for k, client in self.clients.items()}

    def close(self) -> None:
        self.post.close()

    def open(self) -> None:
        """Tell every client of the run. All that are there must be fit for it, and there must be a quorum of them."""
        K = self.job.clients
        mail = self.exchange(Mailing("query.charter", 0, set(range(K)), K))
        told = "; ".join(f"client {k}: {why}" for k, why in sorted(mail.trouble.items()))
        if mail.unfit:
            raise UserError(f"not all clients can take part in this run ({told})")
        if len(mail.taken) < self.quorum(K):
            raise UserError(f"only {len(mail.taken)} of {K} clients are ready ({told}); start the others")

    # --- a round ----------------------------------------------------------------------------------------------------

    def begin(self, invited: Collection[int], wanted: int) -> None:
        self.invited, self.wanted = set(invited), wanted
        self.out: set[int] = set()  # whom this round goes on without

    def __call__(
        self, pass_: Pass, server: Server, cohort: Sequence[int], inbox: Mapping[int, Params] | None = None
    ) -> dict[int, Reply]:
        address, inboxes = self.job.address(pass_), inbox or {}
        tasks = {
            k: Task(address, server.round, server.params_for(k, self.job.scopes), inboxes.get(k, {}))
            for k in sorted(cohort)
        }
        own = {OWN: self.visit_own(tasks.pop(OWN))} if OWN in tasks else {}
        return {**own, **self.ask(tasks, address, server.round)} if tasks else own

    def visit_own(self, task: Task) -> Reply:
        if self.own is None:
            raise UserError("this method asks the server for data of its own; see data.server")
        packed, self.clients[OWN] = visit(self.job, OWN, task, self.clients.get(OWN, Client()), self.own)
        return opened(self.job, task, packed)

    def ask(self, tasks: Mapping[int, Task], address: str, round_: int) -> dict[int, Reply]:
        """The replies of those who are still in the round; too few are an error."""
        replies: dict[int, Reply] = {}
        counted: dict[int, Visited] = {}
        before = dict(self.clients)

        def write(k: int) -> tuple[Order, Groups]:
            task, client = tasks[k], self.clients[k]
            order = Order(
                **self.addressed(k),
                version=client.version,
                mark=client.mark,
                kept=min(self.kept[k], client.version),
                pass_=task.pass_,
                round=task.round,
            )
            return order, {"params": task.params, "inbox": task.inbox}

        def take(k: int, letter: Letter, tensors: Groups) -> None:
            if not isinstance(letter, Answer):
                raise UserError("it sent no answer to an order")
            packed = Reply(tensors["params"], letter.weight, tensors["stats"])
            reply = opened(self.job, tasks[k], packed)
            check_reply(tasks[k], reply, "its answer")
            if letter.version != self.clients[k].version + 1:
                raise UserError(f"its answer is of state {letter.version}, not of {self.clients[k].version + 1}")
            replies[k], self.clients[k] = reply, Client(version=letter.version, mark=letter.serial)
            up, down = reply_bytes(packed), tasks[k].bytes
            counted[k] = Visited(round_, k, address, letter.samples, letter.weight, down, up, letter.seconds)

        began = self.clock()
        enough = min(self.wanted, len(tasks)) if self.invited.issuperset(tasks) else len(tasks)
        mail = self.exchange(Mailing("train.order", round_, tasks.keys() - self.out, enough, write, take))
        took = round(self.clock() - began, 4)
        for k in misshapen(replies):
            mail.trouble[k] = "its answer has statistics of another shape than the others' have"
            self.clients[k] = before[k]
            del replies[k], counted[k]
        self.visits += counted.values()
        for k, why in sorted(mail.trouble.items()):
            self.visits.append(Visited(round_, k, address, 0, 0.0, tasks[k].bytes, 0, took, why))
        self.out |= mail.trouble.keys()
        if len(replies) < (needed := self.quorum(enough)):
            raise Shortfall(f"{len(replies)} of {len(tasks)} clients answered, {needed} are needed (plan.quorum)")
        return replies

    def quorum(self, of: int) -> int:
        return max(1, math.ceil(self.plan.quorum * of - 1e-9))

    # --- tests ------------------------------------------------------------------------------------------------------

    def examine(self, setup: Setup, server: Server) -> list[Score]:
        """Every client tests its own model; one that does not answer in time, or has been away, has no score."""
        self.marks = {}

        def write(k: int) -> tuple[Exam, Groups]:
            client = self.clients[k]
            exam = Exam(**self.addressed(k), version=client.version, mark=client.mark)
            return exam, {"params": server.params_for(k, self.job.scopes)}

        def take(k: int, letter: Letter, tensors: Groups) -> None:
            if not isinstance(letter, Marks):
                raise UserError("it sent no marks for an exam")
            scores = letter.personal, letter.shared, letter.zero_shot
            if any(len(it.per_class) != setup.groups.classes for it in scores):
                raise UserError(f"its marks are no scores of {setup.groups.classes} classes")
            self.marks[k] = letter

        K, last = self.job.clients, server.round - 1
        there = set(range(K)) - self.absent.difference(self.post.here() if self.absent else ())
        mail = self.exchange(Mailing("evaluate.exam", last, there, K, write, take))
        for k, why in sorted(mail.trouble.items()):
            self.visits.append(Visited(last, k, "exam", 0, 0.0, 0, 0, 0.0, why))
        none = score(np.empty(0, np.int64), np.empty(0, np.int64), setup.groups)
        return [self.marks[k].personal if k in self.marks else none for k in range(K)]

    def shared(self, setup: Setup, server: Server) -> Score:
        if len(setup.tests.labels) or not self.marks:
            return score_shared(setup.job, server, setup.tests)
        return mean_score([marks.shared for marks in self.marks.values()])

    def untuned(self) -> Score | None:
        return mean_score([marks.zero_shot for marks in self.marks.values()]) if self.marks else None

    def pseudo(self, setup: Setup) -> Quality | None:
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
        return seal(self.charter.model_copy(update={"client": k}))

    def exchange(self, mail: Mailing) -> Mailing:
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

    def receive(self, mail: Mailing, arrival: Arrival) -> Step:
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

    def read(self, mail: Mailing, k: int, arrival: Arrival) -> Step:
        """What is not yet known to be a letter; an error if it is of no use."""
        if arrival.trouble:
            raise UserError(arrival.trouble)
        if len(arrival.data) > self.plan.limit * 1e6:
            raise UserError(
                f"an answer of {len(arrival.data) / 1e6:.1f} MB is more than plan.limit={self.plan.limit:g}"
            )
        letter, tensors = unseal(arrival.data)
        serial = mail.sent[k][0] if k in mail.sent else ""
        if isinstance(letter, Present):
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
        if not isinstance(letter, Addressed) or (letter.run, letter.client) != (self.charter.run, k):
            raise UserError("it answered another letter than it was sent")
        if letter.serial != serial:
            return self.aside(mail, k)
        assert mail.take is not None
        mail.take(k, letter, tensors)
        return "done"

    def aside(self, mail: Mailing, k: int) -> Step:
        """It is about an earlier letter, which no longer counts; the answer that is due may be behind it."""
        mail.stale.add(k)
        return "wait"

    def patience(self, mail: Mailing, k: int) -> Step:
        mail.again[k] = mail.again.get(k, 0) + 1
        if mail.again[k] > 5:
            raise UserError("it asks for the same again and again")
        return "again"

    def restart(self, mail: Mailing, k: int, text: str) -> None:
        """A client has lost its state: stop, or let it begin anew and write that down."""
        if self.plan.lost == "stop":
            raise StateLost(
                f"client {k} has lost its state ({text}). Give it back its folder and resume the run, "
                "or resume with plan.lost=anew to let it begin anew"
            )
        self.clients[k] = Client()
        mail.sent.pop(k, None)
        why = f"began anew: {text}"
        self.visits.append(Visited(mail.round, k, mail.kind, 0, 0.0, 0, 0, 0.0, why))


def misshapen(replies: Mapping[int, Reply]) -> list[int]:
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
