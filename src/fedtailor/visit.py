"""One visit of the server to a client: the single function that every engine calls.

What a client may know goes in, what may leave it comes out. A method cannot leak local state even by mistake: whatever
its pass returns, LOCAL and FIXED parameters and `keep` are taken out here before anything travels.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .core import FIXED, LOCAL, OWN, Me, Method, Params, Pass, Reply, Samples, Scope, Server
from .errors import UserError
from .labelers.base import CANDIDATES, INDEX, LABEL, Labeler
from .packing import pack, unpack
from .rebalance.base import Balance, Rebalancer
from .rng import generator

if TYPE_CHECKING:
    from .model import Model

HEAVIEST = 1e12  # no client has so many samples
LABELER = "labels."  # before the name of a labeler's pass, in its address on the wire
Guard = Callable[[Reply, torch.Generator], Reply]


def as_it_is(reply: Reply, rng: torch.Generator) -> Reply:
    return reply


@dataclass(frozen=True)
class Job:
    """What every participant of a run holds before it starts."""

    method: Method
    model: Model
    seed: int
    labeler: Labeler | None = None  # None: labels are given
    rebalancer: Rebalancer | None = None  # takes hold of every task loss
    rounds: int = 0  # T
    clients: int = 0  # K
    validates: bool = False  # whether the server has data of its own
    guard: Guard = as_it_is  # the privacy step, behind which nothing but packing is done to what leaves a client
    updates: str = "fp32"  # how what leaves is packed (packing.py)

    @cached_property
    def start(self) -> Params:
        """Every parameter's first value, the same at every participant since it comes from the seed."""
        return to_cpu(self.method.init(self.model, generator(self.seed, "init")))

    @cached_property
    def scopes(self) -> dict[str, Scope]:
        return self.method.scopes(self.start)

    @cached_property
    def personal(self) -> bool:
        """Whether clients keep parameters of their own."""
        return any(scope == LOCAL for scope in self.scopes.values())

    def first_server(self) -> Server:
        shared = {n: v for n, v in self.start.items() if self.scopes[n] not in (LOCAL, FIXED)}
        return self.resumed(Server(0, shared))

    def resumed(self, server: Server) -> Server:
        """A server with what is the same throughout a run, which a checkpoint does not hold."""
        return replace(server, rounds=self.rounds, clients=self.clients, validates=self.validates, seed=self.seed)

    def address(self, pass_: Pass) -> str:
        """What a pass is called on the wire."""
        owner, name = getattr(pass_, "__self__", None), getattr(pass_, "__name__", "")
        return f"{LABELER}{name}" if self.labeler is not None and owner is self.labeler else name

    def find(self, address: str) -> Pass:
        owner: object = self.labeler if address.startswith(LABELER) else self.method
        found: Pass | None = getattr(owner, address.removeprefix(LABELER), None)
        if found is None:
            raise UserError(f"there is no pass {address!r} here; do server and client run the same method and labeler?")
        return found


@dataclass(frozen=True)
class Task:
    """What goes down to one client."""

    pass_: str
    round: int
    params: Params
    inbox: Params = field(default_factory=dict)

    @property
    def bytes(self) -> int:
        return size(self.params) + size(self.inbox)


@dataclass(frozen=True)
class Client:
    """What a client keeps between visits; it never leaves."""

    local: Params = field(default_factory=dict)  # LOCAL parameters
    memory: Params = field(default_factory=dict)  # what passes asked to keep
    tuned: Params = field(default_factory=dict)  # the shared parameters as this client last trained them
    version: int = 0  # one more with each visit
    mark: str = ""  # of a client that is elsewhere: the serial of the order that left it in this state


def size(params: Params) -> int:
    return sum(value.numel() * value.element_size() for value in params.values())


def reply_bytes(reply: Reply) -> int:
    return size(reply.params) + size(reply.stats)


def to_cpu(params: Params) -> Params:
    return {name: value.detach().to("cpu") for name, value in params.items()}


def copies(params: Params) -> Params:
    return {name: value.clone() for name, value in params.items()}


def theta_of(job: Job, down: Params, client: Client) -> Params:
    """GLOBAL ∪ CLUSTER ∪ LOCAL ∪ FIXED, in the order of `job.start`."""
    if lacking := [n for n, scope in job.scopes.items() if scope not in (LOCAL, FIXED) and n not in down]:
        raise UserError(f"the server did not send {', '.join(lacking)}; do server and client run the same method?")
    mine = {**job.start, **client.local}
    return {n: mine[n] if scope in (LOCAL, FIXED) else down[n] for n, scope in job.scopes.items()}


def visit(job: Job, who: int, task: Task, client: Client, data: Samples) -> tuple[Reply, Client]:
    """Run one pass on one client. Returns what leaves it, packed, and its new state."""
    theta = theta_of(job, task.params, client)
    at = f"{type(job.method).__name__}.{task.pass_}, client {who}, round {task.round}"
    path = "round", task.round, "client", who, task.pass_
    rng = generator(job.seed, *path)
    # A pass gets copies: nothing it does in place can reach the server or another client.
    given = {n: job.model.put(v.clone()) for n, v in theta.items()}
    data = data if task.pass_.startswith(LABELER) else dressed(job, who, client, data)
    hold = Hold(job.rebalancer, client, generator(job.seed, *path, "rebalance"))
    data = data if job.rebalancer is None else data.balanced(hold)
    predict = own_predict(job, client, given)
    me = Me(who, task.round, data, copies(client.memory), copies(task.inbox), rng, predict)
    try:
        reply = job.find(task.pass_)(job.model, me, given)
    except UserError as error:
        raise UserError(f"{at}: {error}") from error
    except Exception as error:
        error.add_note(f"in {at}")
        raise
    if not isinstance(reply, Reply):
        raise UserError(f"{at}: a pass gives back a Reply, got {type(reply).__name__}")
    params = to_cpu(reply.params)
    check(params, theta, at)
    check_weight(reply, at)
    leaves = {n: v for n, v in params.items() if job.scopes[n] not in (LOCAL, FIXED)}
    up = job.guard(Reply(leaves, float(reply.weight), to_cpu(reply.stats)), rng)
    kept = to_cpu({**reply.keep, **hold.keep()})
    stays = Client(
        local={**client.local, **{n: v for n, v in params.items() if job.scopes[n] == LOCAL}},
        memory={**client.memory, **copies(kept)},
        # Shared parameters that a method kept back this time are as much the client's last as those it sent.
        tuned=client.tuned if job.personal else {**client.tuned, **copies(leaves | own_names(kept, theta))},
        version=client.version + 1,
    )
    packed = pack(up.params, task.params, job.updates, generator(job.seed, *path, "rounding"))
    return replace(up, params=packed), stays


def opened(job: Job, task: Task, reply: Reply) -> Reply:
    """A client's reply as the server reads it."""
    return replace(reply, params=unpack(reply.params, task.params, job.updates))


def check_reply(task: Task, reply: Reply, at: str) -> None:
    """For a reply from elsewhere: all that `visit` makes sure of for one from here."""
    check(reply.params, task.params, at)
    check_weight(reply, at)
    if reply.weight > HEAVIEST:
        raise UserError(f"{at}: a weight of {reply.weight:g} would leave the others none")
    for name, value in reply.stats.items():
        if not torch.isfinite(value).all():
            raise UserError(f"{at}: {name} is not finite")


class Hold:
    """A rebalancer's balance of one pass, begun when the first batch is drawn, if one is."""

    def __init__(self, rebalancer: Rebalancer | None, client: Client, rng: torch.Generator) -> None:
        self.rebalancer, self.memory, self.rng = rebalancer, client.memory, rng
        self.balance: Balance | None = None

    def __call__(self, counts: Tensor) -> Balance:
        assert self.rebalancer is not None
        self.balance = self.balance or self.rebalancer.begin(copies(self.memory), counts, self.rng)
        return self.balance

    def keep(self) -> Params:
        return {} if self.balance is None else self.balance.keep()


def dressed(job: Job, who: int, client: Client, data: Samples) -> Samples:
    """The client's pictures with the labels that a labeler gave them: none before it did, which leaves nothing to train
    on. As they are where labels are given, or are the server's own."""
    if job.labeler is None or (who == OWN and INDEX not in client.memory):
        return data
    none = torch.empty(0, dtype=torch.int64)
    memory = {INDEX: none, LABEL: none, **client.memory}
    return data.labelled(memory[INDEX], memory[LABEL], memory.get(CANDIDATES))


def own_predict(job: Job, client: Client, theta: Params) -> Callable[[Tensor], Tensor]:
    """The client's own model; what is shared alone until it has parameters of its own."""
    predict = job.method.predict_shared if job.personal and not client.local else job.method.predict
    models: list[Model] = []  # made when first asked: most passes never ask

    def logits(x: Tensor) -> Tensor:
        models[:] = models or [job.model.remembering()]
        return predict(models[0], theta, x)

    return logits


def own_names(kept: Params, theta: Params) -> Params:
    return {name: value for name, value in kept.items() if name in theta}


def check_weight(reply: Reply, at: str) -> None:
    if not 0 <= reply.weight < float("inf"):
        raise UserError(f"{at}: a reply's weight must be 0 or more and finite, got {reply.weight}")


def check(params: Params, theta: Params, at: str) -> None:
    for name, value in params.items():
        if name not in theta:
            raise UserError(f"{at}: returned an unknown parameter {name!r}; known: {', '.join(theta)}")
        if value.shape != theta[name].shape:
            raise UserError(f"{at}: {name} came back as {tuple(value.shape)}, it is {tuple(theta[name].shape)}")
        if value.dtype != theta[name].dtype:
            raise UserError(f"{at}: {name} came back as {value.dtype}, it is {theta[name].dtype}")
        if not torch.isfinite(value).all():
            raise UserError(f"{at}: {name} is no longer finite; training diverged, a smaller lr may help")
