"""An engine whose clients are remote: requests go out over some transport, and replies count until a deadline.

The server remembers of every client which state its last counted reply left. A reply that is late, damaged, unfit or to
another request counts for nothing, at the client too: its next request names the state from before.
"""

import math
import re
import secrets
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from ..base.errors import UserError
from ..base.files import write_atomic
from ..base.polling import Backoff
from ..base.version import __version__, apart
from ..client.job import ClientState, Task, size
from ..client.step import check_reply, client_step, decompressed, reply_bytes
from ..core.types import OWN, Params, Pass, Reply, Server
from ..evaluation.metrics import Scores, score
from ..evaluation.pseudo_labels import Quality, in_percent
from ..evaluation.testing import score_shared
from ..robust.base import lightened
from ..secure.masked import FEWEST
from ..simulation.build import Experiment
from ..simulation.engine import Engine, Evaluation, StepLog, TooFewReplies
from . import messages
from .bounds import outliers, too_far
from .refusal import SENTENCES, UNFIT
from .sums import SecureSum, Stage

PAUSE = 0.02, 0.5  # seconds between two looks for replies: the first, and at most
MODEL = "query.model"  # the kind of exchange by which a run's model is handed over
MAX_REPEATS = 5  # of what a client makes us send again
AGAIN = 60.0  # seconds until a client of another version is asked again, unless it has come online anew by then
NOT_NEEDED = "not needed: enough others had replied"


@dataclass(frozen=True)
class Received:
    """What came from a client: a message, or trouble. `gone`: it was not there, and may come back."""

    client: int
    data: bytes = b""
    trouble: str = ""
    gone: bool = False


class Transport(Protocol):
    """Carries messages. It may lose them, take long, and bring them in any order."""

    def online(self) -> Collection[int]: ...  # the clients that can be sent to now
    def send(self, kind: str, round_: int, data: Mapping[int, bytes]) -> None: ...
    def receive(self) -> Iterable[Received]: ...
    def close(self) -> None: ...


class Unfit(UserError):  # noqa: N818  # as it reads
    """Some clients can take no part in this run at all."""

    def __init__(self, text: str, why: Mapping[int, str]) -> None:
        super().__init__(text)
        self.why = why  # by client


class StateLost(UserError):  # noqa: N818  # as it reads
    """A run cannot go on as if nothing had happened."""


@dataclass
class Exchange:
    """One message to each of some clients, and what becomes of it."""

    kind: str
    round: int
    waiting: set[int]
    quorum: int  # replies, after which the absent have plan.grace left
    enough: int  # replies
    # The request to a client, and what to do with its reply, or an error. None: it is about the invitation alone.
    write: Callable[[int], tuple[messages.Request, messages.TensorGroups]] | None = None
    take: Callable[[int, messages.Message, messages.TensorGroups], None] | None = None
    sent: dict[int, tuple[str, bytes]] = field(default_factory=dict)  # request id and bytes; sent again as they are
    repeats: Counter[int] = field(default_factory=Counter)  # how often a client has made us send again
    taken: set[int] = field(default_factory=set)
    trouble: dict[int, str] = field(default_factory=dict)
    unfit: set[int] = field(default_factory=set)
    stale: set[int] = field(default_factory=set)  # who has replied to earlier requests meanwhile

    def __post_init__(self) -> None:
        self.unsent = set(self.waiting)

    @property
    def over(self) -> bool:
        return not self.waiting or len(self.taken) >= self.enough

    def request(self, k: int) -> bytes:
        if k not in self.sent and self.write:
            request, tensors = self.write(k)
            self.sent[k] = request.request_id, messages.encode(request, **tensors)
        return self.sent[k][1]

    def send_again(self, k: int) -> None:
        self.repeats[k] += 1
        if self.repeats[k] > MAX_REPEATS:
            raise UserError("it asks for the same again and again")
        self.unsent.add(k)

    def finish(self, k: int, trouble: str | None = None) -> None:
        self.waiting.discard(k)
        self.unsent.discard(k)
        if trouble is None:
            self.taken.add(k)
        else:
            self.trouble[k] = trouble


# Is told of an exchange, and who is online, at each look for replies.
Watch = Callable[["RemoteEngine", Exchange, Collection[int]], object]


def unwatched(engine: "RemoteEngine", exchange: Exchange, online: Collection[int]) -> None:
    pass


class RemoteEngine(Engine):
    def __init__(
        self,
        experiment: Experiment,
        clients: Mapping[int, ClientState] | None,
        transport: Transport,
        run: str,  # the run's id
        name: str = "",  # what people call it
        clock: Callable[[], float] = time.monotonic,
        wait: Callable[[float], object] = time.sleep,
        watch: Watch = unwatched,
        newcomers: Collection[int] = (),  # whom a run under way does not wait for until they are upgraded
    ) -> None:
        super().__init__(experiment.job, clients)
        self.newcomers = newcomers
        self.policy, self.server_data = experiment.run.plan, experiment.client_data.get(OWN)
        self.transport, self.invitation = transport, invitation_of(experiment, run, name)
        self.clock, self.wait, self.watch, self.oversample = clock, wait, watch, self.policy.oversample
        start = secrets.token_hex(4)
        self.request_ids = (f"{start}-{n}" for n in count(1))
        self.invited: set[int] = set()  # who has had the invitation from this process
        self.samples: dict[int, int] = {}  # how many each had when it joined
        self.versions: dict[int, str] = {}  # of fedtailor, at each that has said
        self.outdated: dict[int, float] = {}  # who has another, which makes it as good as away; when to ask again
        self.tested: dict[int, messages.EvaluateReply] = {}  # the last replies
        self.absent: set[int] = set()  # who did not reply when asked last
        self.kept, self.last = dict[int, int](), dict[int, int]()  # states' versions at the last two checkpoints
        self.begin_round((), 0)
        self.committed()

    def committed(self) -> None:
        self.kept, self.last = self.last, {k: client.version for k, client in self.clients.items()}

    def close(self) -> None:
        self.transport.close()

    def open(self) -> None:
        """Invite every client. All that are there must be fit for the run, and there must be a quorum of them."""
        members = self.job.members
        needed, all_ = self.quorum(len(members)), len(members)
        done = self.carry_out(Exchange("query.invite", 0, set(members), needed, all_))
        told = "; ".join(f"client {k}: {why}" for k, why in sorted(done.trouble.items()))
        if done.unfit:
            raise Unfit(f"not all clients can take part in this run ({told})", {k: done.trouble[k] for k in done.unfit})
        if len(done.taken) < needed:
            raise UserError(f"only {len(done.taken)} of {all_} clients are ready ({told}); start the others")

    def begin_round(self, invited: Collection[int], wanted: int) -> None:
        self.cohort, self.wanted = set(invited), wanted
        self.out: set[int] = set()  # whom this round goes on without

    def __call__(
        self, pass_: Pass, server: Server, cohort: Sequence[int], inbox: Mapping[int, Params] | None = None
    ) -> dict[int, Reply]:
        tasks = self.tasks(pass_, server, cohort, inbox)
        own: dict[int, Reply] = {}
        if task := tasks.pop(OWN, None):  # on the server's own data, here
            if self.server_data is None:
                raise UserError("this method asks the server for data of its own; see data.server")
            packed, self.clients[OWN] = client_step(self.job, OWN, pass_, task, self.clients[OWN], self.server_data)
            own = {OWN: decompressed(self.job, task, packed)}
        ask = self.ask_sum if self.job.secure else self.ask
        return {**own, **ask(tasks, self.job.pass_name(pass_), server.round)} if tasks else own

    def ask(self, tasks: Mapping[int, Task], name: str, round_: int) -> dict[int, Reply]:
        """The replies of those who are still in the round; too few are an error."""
        replies: dict[int, Reply] = {}
        counted: dict[int, StepLog] = {}
        before = {k: self.clients[k] for k in tasks}

        def write(k: int) -> tuple[messages.PassRequest, messages.TensorGroups]:
            task, kept = tasks[k], min(self.kept.get(k, 0), self.clients[k].version)
            request = messages.PassRequest(**self.heading(k), kept=kept, pass_name=task.pass_name, round=task.round)
            return request, {"params": task.params, "inbox": task.inbox}

        def take(k: int, message: messages.Message, tensors: messages.TensorGroups) -> None:
            if not isinstance(message, messages.PassReply):
                raise UserError("it did not reply to a pass")
            packed = Reply(tensors["params"], message.weight, tensors["stats"])
            reply = decompressed(self.job, tasks[k], packed)
            self.check_told(k, message)
            check_reply(self.job, tasks[k], reply, message.samples, "its reply")
            if why := too_far(tasks[k], reply):
                raise UserError(why)
            replies[k] = reply
            self.clients[k] = ClientState(version=message.version, state_id=message.request_id)
            up, down = reply_bytes(packed), tasks[k].bytes
            counted[k] = StepLog(round_, k, name, message.samples, message.weight, down, up, message.seconds)

        began = self.clock()
        enough = min(self.wanted, len(tasks)) if self.cohort.issuperset(tasks) else len(tasks)
        needed = self.quorum(enough)
        done = self.carry_out(Exchange("train.pass", round_, tasks.keys() - self.out, needed, enough, write, take))
        took = round(self.clock() - began, 4)
        for k, why in outliers(tasks, replies, self.policy.longest).items():
            done.trouble[k], self.clients[k] = why, before[k]
            del replies[k], counted[k]
        replies = lightened(replies, self.policy.heaviest)
        self.log += [replace(step, weight=replies[k].weight) for k, step in counted.items()]
        dropped = sorted(done.trouble.items())
        self.log += [StepLog(round_, k, name, 0, 0.0, tasks[k].bytes, 0, took, why) for k, why in dropped]
        self.out |= done.trouble.keys()
        if len(replies) < needed:
            raise TooFewReplies(f"{len(replies)} of {len(tasks)} clients replied, {needed} are needed (plan.quorum)")
        return replies

    def ask_sum(self, tasks: Mapping[int, Task], name: str, round_: int) -> dict[int, Reply]:
        """For each client that replied, the mean of their replies: more of them is not seen here."""
        job, anyone = self.job, next(iter(tasks.values()))
        assert job.secure is not None
        total = SecureSum(job.secure, job.layout(anyone.params, name), tasks)
        there, needed = tasks.keys() - self.out, max(self.quorum(len(tasks)), FEWEST)
        told: dict[int, messages.MaskedReply] = {}
        up, down, began = Counter[int](), Counter[int](), self.clock()

        def write(k: int, stage: Stage) -> tuple[messages.Request, messages.TensorGroups]:
            kept = min(self.kept.get(k, 0), self.clients[k].version)
            request, tensors = stage.write(k, {**self.heading(k), "kept": kept})
            down[k] += message_bytes(request, tensors)
            return request, tensors

        def take(k: int, message: messages.Message, tensors: messages.TensorGroups, stage: Stage) -> None:
            if isinstance(message, messages.MaskedReply):
                self.check_told(k, message)
            stage.take(k, message, tensors)
            up[k] += message_bytes(message, tensors)
            if isinstance(message, messages.MaskedReply):
                told[k] = message
                self.clients[k] = ClientState(version=message.version, state_id=message.request_id)

        for stage in total.stages:
            enough = total.enough(stage, there)
            quorum = enough if stage is total.stages[-1] else min(needed, enough)
            ways = partial(write, stage=stage), partial(take, stage=stage)
            done = self.carry_out(Exchange(stage.kind, round_, set(there), quorum, enough, *ways))
            if stage is not total.stages[-1]:
                there = done.taken
                self.out |= done.trouble.keys()
                took = round(self.clock() - began, 4)
                lost = sorted(done.trouble.items())
                self.log += [StepLog(round_, k, name, 0, 0.0, down[k], 0, took, why) for k, why in lost]
            if len(there) < needed:
                raise TooFewReplies(f"{len(there)} of {len(tasks)} clients replied, {needed} are needed (plan.quorum)")
        try:
            mean = total.mean()
            if why := self.impossible(anyone, mean, told):
                raise UserError(why)
        except UserError as error:
            lost = [(k, why) for k, why in sorted(done.trouble.items()) if why != NOT_NEEDED]
            self.log += [StepLog(round_, k, name, 0, 0.0, down[k], up[k], 0.0, why) for k, why in lost]
            raise TooFewReplies(f"the sum of the replies cannot be opened: {error}") from error
        self.log += [
            StepLog(round_, k, name, it.samples, None, down[k], up[k], it.seconds) for k, it in sorted(told.items())
        ]
        return dict.fromkeys(sorted(told), mean)

    def impossible(self, task: Task, mean: Reply, told: Mapping[int, messages.MaskedReply]) -> str:
        """Why replies that clients may send cannot have this mean; empty: they can."""
        times = 1 if self.job.labeler is None else self.job.model.classes
        most = sum(max(1, it.samples) * times for it in told.values()) / len(told)
        heavy = f"its weight is {mean.weight:g}, {most:g} is the most" if mean.weight > most * (1 + 1e-6) else ""
        return heavy or too_far(task, mean)

    def check_told(self, k: int, message: messages.PassReply | messages.MaskedReply) -> None:
        if message.samples > (known := self.samples.get(k, 0)):
            raise UserError(f"it says that it has {message.samples} samples, and had {known} when it joined")
        if message.version != (due := self.clients[k].version + 1):
            raise UserError(f"its reply is of state {message.version}, not of {due}")

    def pictures(self) -> dict[int, int]:
        return self.samples

    def quorum(self, of: int) -> int:
        return max(1, math.ceil(self.policy.quorum * of - 1e-9))

    def evaluate(self, experiment: Experiment, server: Server) -> Evaluation:
        """Every client tests its own model; one that does not reply in time, or has been away, has no score."""
        self.tested = {}

        def write(k: int) -> tuple[messages.EvaluateRequest, messages.TensorGroups]:
            return messages.EvaluateRequest(**self.heading(k)), {"params": server.params_for(k, self.job.scopes)}

        def take(k: int, message: messages.Message, tensors: messages.TensorGroups) -> None:
            if not isinstance(message, messages.EvaluateReply):
                raise UserError("it did not reply to a test")
            scores = message.personal, message.shared, message.zero_shot
            if any(len(it.per_class) != experiment.groups.classes for it in scores):
                raise UserError(f"its scores are not scores of {experiment.groups.classes} classes")
            self.tested[k] = message

        members, last = self.job.members, server.round - 1
        there = set(members) - self.absent.difference(self.within_reach(self.transport.online()) if self.absent else ())
        needed, all_ = self.quorum(len(members)), len(members)
        done = self.carry_out(Exchange("evaluate.test", last, there, needed, all_, write, take))
        self.log += [StepLog(last, k, "evaluate", 0, 0.0, 0, 0, 0.0, why) for k, why in sorted(done.trouble.items())]
        none = score(np.empty(0, np.int64), np.empty(0, np.int64), experiment.groups)
        clients = Scores.of([self.tested[k].personal if k in self.tested else none for k in range(self.job.clients)])
        untuned = Scores.of([reply.zero_shot for reply in self.tested.values()]).mean() if self.tested else None
        if len(experiment.tests.labels) or not self.tested:
            return Evaluation(score_shared(experiment.job, server, experiment.tests), clients, untuned)
        return Evaluation(Scores.of([reply.shared for reply in self.tested.values()]).mean(), clients, untuned)

    def pseudo_labels(self, experiment: Experiment) -> Quality | None:
        """As of the last test."""
        counts = [reply.pseudo for reply in self.tested.values() if reply.pseudo is not None]
        if not counts:
            return None
        labels, right, labelled, samples = (sum(column) for column in zip(*counts, strict=True))
        return in_percent((labels, right, labelled, samples))

    def hand_over(self, server: Server, to: Collection[int], seconds: float) -> Exchange:
        """Give clients that are there the model that the run has come to, each its own, within so many seconds."""

        def write(k: int) -> tuple[messages.ModelRequest, messages.TensorGroups]:
            down = server.params_for(k, self.job.scopes)
            cluster = {name: value for name, value in down.items() if value is not server.params[name]}
            return messages.ModelRequest(**self.heading(k)), {"params": server.params, "cluster": cluster}

        def take(k: int, message: messages.Message, tensors: messages.TensorGroups) -> None:
            if not isinstance(message, messages.ModelReply):
                raise UserError("it did not say that it has the model")

        self.invited |= set(to)  # who has no invitation any more says so
        there = set(to).intersection(self.transport.online())
        return self.carry_out(Exchange(MODEL, self.job.rounds, there, len(there), len(there), write, take), seconds)

    def heading(self, k: int) -> dict[str, Any]:
        """What every request to a client begins with: its own id, and the state that it is about."""
        about = {"version": self.clients[k].version, "state_id": self.clients[k].state_id}
        return {"run": self.invitation.run, "client": k, "request_id": next(self.request_ids), **about}

    def carry_out(self, exchange: Exchange, seconds: float | None = None) -> Exchange:
        """Send to all and read what comes, until enough have replied or time is up (by default: plan.deadline). After a
        quorum, those away have plan.grace; but none who were away before and still are, who had it then."""
        pause, away = Backoff(*PAUSE), frozenset(self.absent)
        ends = self.clock() + (self.policy.deadline if seconds is None else seconds)
        grace = math.inf  # until when the absent are waited for
        while not exchange.over:
            online = set(self.transport.online())
            self.watch(self, exchange, online)
            online = self.within_reach(online)
            if exchange.unsent:
                self.send(exchange, exchange.unsent & online)
            quiet = True
            for arrival in self.transport.receive():
                if arrival.client in exchange.waiting and not exchange.over:
                    self.receive(exchange, arrival)
                    quiet = quiet and arrival.gone  # who is not there may be tried again, but not at once
            if len(exchange.taken) >= exchange.quorum:
                grace = min(grace, self.clock() + self.policy.grace)
                if exchange.waiting.isdisjoint(online) and (exchange.waiting <= away or self.clock() >= grace):
                    break
            if (left := ends - self.clock()) <= 0:
                break
            if not quiet:
                pause.reset()
            elif not exchange.over:
                self.wait(min(pause.next(), left))
        needless = len(exchange.taken) >= exchange.enough  # to wait for those who are left
        self.absent = (self.absent | (set() if needless else exchange.waiting)) - exchange.taken
        for k in exchange.waiting:
            late = "late: no reply in time" + (", only to an earlier request" if k in exchange.stale else "")
            gone = f"gone: it {self.other_version(k)}" if k in self.outdated else "gone: it was not there, or left"
            missed = gone if k in exchange.unsent else late
            exchange.trouble[k] = NOT_NEEDED if needless else missed
        self.watch(self, exchange, self.transport.online())
        return exchange

    def within_reach(self, online: Collection[int]) -> set[int]:
        """Of those who are online, who has our version as far as we know."""
        for k in self.outdated.keys() - set(online):
            del self.outdated[k], self.versions[k]  # it may come back with another
        self.outdated = {k: again for k, again in self.outdated.items() if self.clock() < again}
        return set(online) - self.outdated.keys()

    def other_version(self, k: int) -> str:
        """What it has, and what to do about it; empty: ours, or it has not said."""
        return apart(self.versions.get(k, __version__), self.invitation.version)

    def send(self, exchange: Exchange, online: set[int]) -> None:
        """The invitation where it has not been sent yet, else the request."""
        new = {k: self.invitation.model_copy(update={"client": k}) for k in sorted(online - self.invited)}
        requests = {k: exchange.request(k) for k in sorted(online & self.invited)}
        self.transport.send("query.invite", exchange.round, {k: messages.encode(new[k]) for k in new})
        self.transport.send(exchange.kind, exchange.round, requests)
        exchange.unsent -= online

    def receive(self, exchange: Exchange, arrival: Received) -> None:
        """What a client sent may be wrong in any way: that is its trouble, not the run's."""
        try:
            self.read(exchange, arrival.client, arrival)
        except StateLost:
            raise
        except Exception as error:
            told = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
            exchange.finish(arrival.client, told)

    def read(self, exchange: Exchange, k: int, arrival: Received) -> None:
        if arrival.gone:
            return exchange.unsent.add(k)
        if arrival.trouble:
            raise UserError(arrival.trouble)
        if (size := len(arrival.data) / 1e6) > self.policy.limit:
            raise UserError(f"a reply of {size:.1f} MB is more than plan.limit={self.policy.limit:g}")
        message, tensors = messages.decode(arrival.data)
        due = exchange.sent[k][0] if k in exchange.sent else ""
        if isinstance(message, messages.Ready):
            self.invited.add(k)
            self.samples.setdefault(k, message.samples)
            self.versions[k] = __version__  # others refuse
            return exchange.send_again(k) if exchange.write else exchange.finish(k)
        if isinstance(message, messages.Refusal):
            if message.request_id in ("", due):
                return self.read_refusal(exchange, k, message)
        elif not isinstance(message, messages.Numbered) or (message.run, message.client) != (self.invitation.run, k):
            raise UserError("it replied to another message than it was sent")
        elif exchange.take and message.request_id == due:
            exchange.take(k, message, tensors)
            return exchange.finish(k)
        exchange.stale.add(k)  # to an earlier request, which no longer counts; the reply that is due may follow
        return None

    def read_refusal(self, exchange: Exchange, k: int, refusal: messages.Refusal) -> None:
        if refusal.why == "version":
            return self.wait_for_upgrade(exchange, k, refusal.version)
        if refusal.why == "unknown-run":
            self.invited.discard(k)
        elif refusal.why != "lost-state" or exchange.kind == MODEL:  # a run that is over needs no client's state
            exchange.unfit |= {k} if refusal.why in UNFIT else set()
            raise UserError(refusal.text)
        elif self.policy.lost == "stop":
            raise StateLost(
                f"client {k} has lost its state ({refusal.text}). Give it back its folder and resume the run, "
                "or resume with plan.lost=anew to let it begin anew"
            )
        else:
            self.clients[k] = ClientState()
            exchange.sent.pop(k, None)
            told = f"began anew: {refusal.text}"
            self.log.append(StepLog(exchange.round, k, exchange.kind, 0, 0.0, 0, 0, 0.0, told))
        return exchange.send_again(k)

    def wait_for_upgrade(self, exchange: Exchange, k: int, version: str) -> None:
        """As for who is away: it will be another process that comes back."""
        self.invited.discard(k)
        self.versions[k] = version
        told = self.other_version(k)  # nothing, if it says that ours is another
        unfit = exchange.write is None and k in self.newcomers
        if unfit or exchange.kind == MODEL or not told:
            exchange.unfit |= {k} if unfit else set()
            raise UserError(f"it {told}" if told else SENTENCES["version"])
        self.outdated[k] = self.clock() + AGAIN
        exchange.unsent.add(k)


def message_bytes(message: messages.Message, tensors: messages.TensorGroups) -> int:
    """Of a message and its tensors."""
    return len(message.model_dump_json()) + sum(size(group) for group in tensors.values())


def run_id(folder: Path | None) -> str:
    """A run's name among its clients for as long as it lives, kept in its folder."""
    new = secrets.token_hex(16)
    if not folder:
        return new
    path = folder / "id"
    if not path.is_file():
        write_atomic(path, new.encode())
    known = path.read_bytes().decode(errors="replace")
    if not re.fullmatch("[0-9a-f]{32}", known):
        raise UserError(f"{path} is damaged; it is the name by which clients know this run, so run it anew")
    return known


def invitation_of(experiment: Experiment, run: str, name: str = "") -> messages.Invitation:
    dataset = experiment.federation.dataset
    return messages.Invitation(
        run=run,
        name=name,
        client=0,  # each gets its own number
        version=__version__,
        settings=experiment.run.to_toml(),
        weights=experiment.weights,
        classes=dataset.classes,
        template=experiment.run.data.template or dataset.template,
        paper=dataset.paper,
        groups={name: tuple(members.tolist()) for name, members in experiment.groups.items()},
    )
