"""What every participant of a run holds, what goes down to a client, and what a client keeps."""

import inspect
from dataclasses import dataclass, field, replace
from functools import cached_property

from ..attacks.base import Attack
from ..base.errors import UserError
from ..base.rng import generator
from ..core.method import Method
from ..core.model import Model
from ..core.statistics import Forms
from ..core.types import FIXED, LOCAL, Params, Pass, Rebalancer, Scope, Server
from ..labelers.base import Labeler
from ..privacy.base import PrivacyStep
from ..secure.encoding import Layout
from ..secure.masked import Masked

LABELER_PREFIX = "labels."  # before the name of a labeler's pass, in its address on the wire


@dataclass(frozen=True)
class Job:
    """What every participant of a run holds before it starts."""

    method: Method
    model: Model
    seed: int
    labeler: Labeler | None = None  # None: labels are given
    rebalancer: Rebalancer | None = None  # reweights the gradient of every task loss
    rounds: int = 0  # T
    clients: int = 0  # K
    gone: frozenset[int] = frozenset()  # of these, who takes no part
    validates: bool = False  # whether the server has data of its own
    privacy: PrivacyStep | None = None  # done to whatever leaves a client, before it is compressed
    updates: str = "fp32"  # how what leaves is compressed
    attack: Attack | None = None  # what bad clients of a simulation do
    cohort: int = 1  # how many clients a round has
    secure: Masked | None = None  # how replies are added up before anybody sees them

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

    @property
    def members(self) -> list[int]:
        """The clients that take part."""
        return [k for k in range(self.clients) if k not in self.gone]

    @cached_property
    def bad(self) -> frozenset[int]:
        """Who attacks, in a simulation that has such clients."""
        return frozenset() if self.attack is None else self.attack.bad(self.clients, self.seed)

    def first_server(self) -> Server:
        shared = {n: v for n, v in self.start.items() if self.scopes[n] not in (LOCAL, FIXED)}
        return self.resumed(Server(0, shared))

    def resumed(self, server: Server) -> Server:
        """A server with what is the same throughout a run, which a checkpoint does not hold."""
        return replace(
            server, rounds=self.rounds, clients=self.clients, gone=self.gone, validates=self.validates, seed=self.seed
        )

    def pass_name(self, pass_: Pass) -> str:
        """What a pass is called on the wire."""
        owner, name = getattr(pass_, "__self__", None), getattr(pass_, "__name__", "")
        return f"{LABELER_PREFIX}{name}" if self.labeler is not None and owner is self.labeler else name

    def find_pass(self, name: str) -> Pass:
        """A pass by its address, which comes from a server: of all that a method has, only passes can be reached."""
        owner: object = self.labeler if name.startswith(LABELER_PREFIX) else self.method
        name_there = name.removeprefix(LABELER_PREFIX)
        if owner is None or not is_pass(getattr(type(owner), name_there, None)):
            raise UserError(f"there is no pass {name!r} here; do server and client run the same method and labeler?")
        found: Pass = getattr(owner, name_there)
        return found

    def statistics(self, pass_name: str) -> Forms:
        """What a pass sends up besides parameters."""
        owner = self.labeler if self.labeler is not None and pass_name.startswith(LABELER_PREFIX) else self.method
        return owner.statistics(pass_name.removeprefix(LABELER_PREFIX), self.model, self.start)

    def layout(self, shared: Params, pass_name: str) -> Layout:
        """Of what clients send after a pass from these parameters, where only the sum of it is seen."""
        start = {name: shared[name] for name in self.scopes if name in shared}
        return Layout.of(start, self.statistics(pass_name), self.clients)


def is_pass(found: object) -> bool:
    """Whether this, of a method's or labeler's class, is a pass: a function of (model, me, theta) and nothing else."""
    return inspect.isfunction(found) and list(inspect.signature(found).parameters) == ["self", "model", "me", "theta"]


@dataclass(frozen=True)
class Task:
    """What goes down to one client."""

    pass_name: str
    round: int
    params: Params
    inbox: Params = field(default_factory=dict)

    @property
    def bytes(self) -> int:
        return size(self.params) + size(self.inbox)


@dataclass(frozen=True)
class ClientState:
    """What a client keeps between steps; it never leaves."""

    local: Params = field(default_factory=dict)  # LOCAL parameters
    memory: Params = field(default_factory=dict)  # what passes asked to keep
    tuned: Params = field(default_factory=dict)  # the shared parameters as this client last trained them
    version: int = 0  # one more with each step
    state_id: str = ""  # of a remote client: the id of the request that left it in this state


def size(params: Params) -> int:
    return sum(value.numel() * value.element_size() for value in params.values())


def to_cpu(params: Params) -> Params:
    return {name: value.detach().to("cpu") for name, value in params.items()}


def theta_of(job: Job, down: Params, client: ClientState) -> Params:
    """GLOBAL ∪ CLUSTER ∪ LOCAL ∪ FIXED, in the order of `job.start`."""
    if lacking := [n for n, scope in job.scopes.items() if scope not in (LOCAL, FIXED) and n not in down]:
        raise UserError(f"the server did not send {', '.join(lacking)}; do server and client run the same method?")
    mine = {**job.start, **client.local}
    return {n: mine[n] if scope in (LOCAL, FIXED) else down[n] for n, scope in job.scopes.items()}
