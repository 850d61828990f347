"""The vocabulary in which every method is written.

A method is FedAvg unless it says otherwise: it may change the loss, the client's pass, who owns which parameter, how
the server folds replies, or the whole round. It never touches an engine, a file or another client.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import torch
from pydantic import BaseModel, ConfigDict
from torch import Tensor

from .descend import Gradient, Local, descend, gradient_of
from .errors import UserError
from .maths import task_loss

if TYPE_CHECKING:
    from .model import Model
    from .rebalance.base import Balance

Params = dict[str, Tensor]  # flat, dotted names: "text.ctx", "visual.block11.q.A"


@dataclass(frozen=True)
class Scope:
    """Who owns a parameter."""

    kind: str
    cluster: str = ""

    def __str__(self) -> str:
        return f"cluster {self.cluster}" if self.cluster else self.kind


GLOBAL = Scope("global")  # one copy, on the server
LOCAL = Scope("local")  # one copy a client, which never leaves it
FIXED = Scope("fixed")  # made from the seed everywhere, never trained, never sent


@dataclass(frozen=True)
class Cluster(Scope):
    """One copy for each cluster of the clustering of that name; the server's copy for clients in none."""

    kind: str = field(default="cluster", init=False)
    cluster: str = ""


@dataclass(frozen=True)
class View:
    """Some of a client's pictures, without labels."""

    x: Tensor  # what the image tower is entered with: pixels, cached tokens or cached features
    index: Tensor  # (B,) which of the client's samples these are
    plain: Tensor | None = None  # (B, D) features of CLIP as it is, where they are cached beside x


@dataclass(frozen=True)
class Batch:
    x: Tensor
    y: Tensor  # (B,) labels, given or pseudo
    index: Tensor
    rng: torch.Generator | None = None  # for dropout; None outside training
    plain: Tensor | None = None
    candidates: Tensor | None = None  # (B, C) weights, where a labeler leaves several classes open
    balance: Balance | None = None  # a rebalancer's hold on the task loss


class Samples(Protocol):
    """A client's training data. Where labels are not given, there is no way to them from here."""

    def __len__(self) -> int: ...
    @property
    def labels(self) -> Tensor: ...
    @property
    def fixed(self) -> bool:
        """Whether a picture looks the same every time: nothing is augmented."""
        ...

    def counts(self) -> Tensor: ...
    def views(self, size: int = 512) -> Iterator[View]: ...
    def batches(self, size: int, drop_last: bool, rng: torch.Generator) -> Iterator[Batch]: ...
    def labelled(self, index: Tensor, y: Tensor, candidates: Tensor | None = None) -> Samples: ...
    def balanced(self, begin: Callable[[Tensor], Balance]) -> Samples:
        """The same samples, whose batches carry what `begin` makes of their label counts."""
        ...

    def split(self, fraction: float) -> tuple[Samples, Samples]:
        """The same two parts every time: what is left, and a held-out slice of about this fraction."""
        ...


@dataclass(frozen=True)
class Me:
    """All that a pass may see of its client. There is no test data here."""

    id: int
    round: int
    data: Samples
    memory: Params
    inbox: Params
    rng: torch.Generator
    predict: Callable[[Tensor], Tensor]  # (B, C) logits of this client's own model as it is now


@dataclass(frozen=True)
class Reply:
    """What a pass gives back. Of `params` only the shared part leaves the client; absent means unchanged."""

    params: Params
    weight: float = 1.0
    stats: Params = field(default_factory=dict)  # goes up
    keep: Params = field(default_factory=dict)  # stays, and comes back as me.memory


@dataclass(frozen=True)
class Server:
    round: int
    params: Params
    clusters: Mapping[str, Mapping[int, Params]] = field(default_factory=dict)  # clustering → cluster → its copies
    cluster_of: Mapping[str, Mapping[int, int]] = field(default_factory=dict)  # clustering → client → cluster
    state: Params = field(default_factory=dict)  # whatever else a method's server side remembers
    rounds: int = 0  # T, so that a last round can be told
    clients: int = 0  # K
    validates: bool = False  # whether the server has data of its own, reached as the client OWN
    seed: int = 0  # of the run; every draw adds a path to it (rng.py)

    def params_for(self, client: int, scopes: Mapping[str, Scope]) -> Params:
        """What this client is sent: global parameters, and its clusters' copies where it has one."""
        down = {}
        for name, value in self.params.items():
            where = scopes[name].cluster
            group = self.cluster_of.get(where, {}).get(client)
            down[name] = value if group is None else self.clusters[where][group].get(name, value)
        return down

    def remember(self, **what: Tensor) -> Server:
        return replace(self, state={**self.state, **what})

    def regrouped(self, name: str, groups: Mapping[int, int], copies: Mapping[int, Params]) -> Server:
        """Some clients (client → group) in new clusters of that clustering, which are numbered like no earlier one.

        Clusters that lose all their members by it are forgotten. The state notes who was put where in this round.
        """
        first = self.round * self.clients
        new = {k: first + group for k, group in groups.items()}
        of = {**self.cluster_of.get(name, {}), **new}
        held = {**self.clusters.get(name, {}), **{first + group: copy for group, copy in copies.items()}}
        held = {cluster: copy for cluster, copy in held.items() if cluster in of.values()}
        server = replace(self, clusters={**self.clusters, name: held}, cluster_of={**self.cluster_of, name: of})
        return server.remember(**{CLUSTERED + name: torch.tensor([list(groups), list(groups.values())])})


Pass = Callable[["Model", Me, Params], Reply]
OWN = -1  # the server's own data answers to this number, where it has some
CLUSTERED = "clustered."  # before a clustering's name, in a server's state: (2, n) a round's clients and their clusters


class Each(Protocol):
    """The engine, entire: run a pass on every client of a cohort. Its name is its address on the wire.

    A client that does not answer is missing from the replies, which come in any order; at least one client answers.
    Who is missing from one pass is left out of the rest of the round, and asked again in the next.
    """

    def __call__(
        self, pass_: Pass, server: Server, cohort: Sequence[int], inbox: Mapping[int, Params] | None = None
    ) -> dict[int, Reply]: ...


class Method(BaseModel):
    """FedAvg. A paper is a subclass; its fields are the paper's hyper-parameters, in the paper's letters."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    share: ClassVar[Mapping[str, Scope]] = {"*": GLOBAL}  # pattern → scope, first match wins
    neutral: ClassVar[Mapping[str, Any]] = {}  # the values at which it must equal FedAvg bit for bit
    trains: ClassVar[bool] = True  # False: nothing is learned, no round is run
    teacher: ClassVar[bool] = False  # True: asks for CLIP's own view of training pictures, which is then cached
    reads: ClassVar[str] = "features"  # "patches": looks at every patch's token, not at the picture's alone
    pooled: ClassVar[bool] = False  # True: not federated; the server trains on everyone's data
    made: ClassVar[tuple[str, ...]] = ()  # patterns of shared parameters that the server makes, not averages
    everyone_first: ClassVar[bool] = False  # all clients in round 0, so that each owns its local parameters

    local: Local = Local()  # how a client descends: epochs, batch, lr …

    @property
    def closing(self) -> int:
        """Rounds over all clients after the last shared one."""
        return 0

    def scopes(self, theta: Params) -> dict[str, Scope]:
        """Who owns each parameter."""
        return resolve(self.share, theta)

    def init(self, model: Model, rng: torch.Generator) -> Params:
        return model.init(rng)

    def loss(self, model: Model, theta: Params, batch: Batch, start: Params) -> Tensor:
        """Of one batch; `start` is what the client was given at the beginning of its pass: parameters and inbox."""
        return task_loss(model.logits(theta, batch.x, batch.rng), batch)

    def gradient(self, model: Model, start: Params) -> Gradient:
        """What a client follows, as a function of parameters and batch."""
        return gradient_of(lambda theta, batch: self.loss(model, theta, batch, start))

    def train(self, model: Model, me: Me, theta: Params) -> Reply:
        fixed = {name for name, scope in self.scopes(theta).items() if scope == FIXED}
        return self.descent(self.gradient(model, {**theta, **me.inbox}), me, theta, me.data, fixed)

    def descent(self, gradient: Gradient, me: Me, theta: Params, data: Samples, fixed: Collection[str] = ()) -> Reply:
        """The reply of a client that follows a gradient over its data."""
        velocity = None if self.local.carry == "no" else handed(me.inbox)
        trained = descend(gradient, theta, data, self.local, me.round, me.rng, fixed, velocity)
        stays = {name for name, scope in self.scopes(theta).items() if scope == LOCAL}
        goes = handed_on(velocity or {}, without=() if self.local.carry == "all" else stays)
        return Reply(trained, weight=len(data), stats=goes)

    def aggregate(self, server: Server, replies: Mapping[int, Reply]) -> Server:
        return replace(server, params={**server.params, **weighted_mean(replies)})

    def everyone(self, clients: int) -> list[int]:
        """All who hold training data."""
        return [OWN] if self.pooled else list(range(clients))

    def cohort(self, t: int, clients: int, fraction: float, rng: torch.Generator) -> list[int]:
        """Who takes part in round t: max(int(fraction · K), 1) clients, uniformly."""
        if self.pooled or (self.everyone_first and t == 0):
            return self.everyone(clients)
        chosen = torch.randperm(clients, generator=rng)[: max(int(fraction * clients), 1)]
        return sorted(chosen.tolist())

    def round(self, server: Server, cohort: Sequence[int], each: Each) -> Server:
        return self.aggregate(*self.gather(self.train, server, cohort, each))

    def gather(
        self,
        pass_: Pass,
        server: Server,
        cohort: Sequence[int],
        each: Each,
        inbox: Mapping[int, Params] | None = None,
    ) -> tuple[Server, dict[int, Reply]]:
        """The cohort's replies to a pass: side by side, or one after the other where momentum is carried."""
        if self.local.carry == "no":
            return server, each(pass_, server, cohort, inbox)
        return relay(pass_, server, cohort, each, inbox)

    def close(self, server: Server, cohort: Sequence[int], each: Each) -> Server:
        """A closing round, over all clients."""
        return server

    def predict(self, model: Model, theta: Params, x: Tensor) -> Tensor:
        """(B, C) logits of a client's model."""
        return model.logits(theta, x)

    def predict_shared(self, model: Model, theta: Params, x: Tensor) -> Tensor:
        """(B, C) logits of the server's model, of what is shared alone: LOCAL parameters have their first values."""
        return self.predict(model, theta, x)

    def branches(self, model: Model, theta: Params, x: Tensor) -> tuple[Tensor, Tensor]:
        """(l_G, l_P), (B, C) each, of a method whose logits are the sum of a global and a personal branch's."""
        raise UserError(f"{type(self).__name__} has no global and personal branch")


def resolve(share: Mapping[str, Scope], names: Mapping[str, Tensor], idle_too: bool = False) -> dict[str, Scope]:
    """The scope of every parameter. Each must match a pattern, and each pattern (but for `idle_too`) something."""
    scopes: dict[str, Scope] = {}
    used = set()
    for name in names:
        pattern = next((p for p in share if fnmatchcase(name, p)), None)
        if pattern is not None:
            scopes[name] = share[pattern]
            used.add(pattern)
    lost, idle = [n for n in names if n not in scopes], [p for p in share if p not in used]
    if names and (lost or (idle and not idle_too)):
        raise UserError(
            f"share does not fit this tuner: parameters without a pattern: {', '.join(lost) or 'none'}; "
            f"patterns without a parameter: {', '.join(idle) or 'none'}; parameters are {', '.join(names)}"
        )
    return scopes


def branch(theta: Params, prefix: str) -> Params:
    """The parameters under a prefix, without it: "global." and "local." where a model is made of two."""
    return {name.removeprefix(prefix): value for name, value in theta.items() if name.startswith(prefix)}


def two_branches(model: Model, rng: torch.Generator) -> Params:
    """A tuner's parameters twice, as "global." and "local." ones, from two draws."""
    drawn = {"global.": model.init(rng), "local.": model.init(rng)}
    return {prefix + name: value for prefix, theta in drawn.items() for name, value in theta.items()}


def even(replies: Mapping[int, Reply]) -> dict[int, Reply]:
    """Every client's word counts the same, however many samples it has."""
    return {k: replace(reply, weight=1.0) for k, reply in replies.items()}


def weighted_mean(replies: Mapping[int, Reply]) -> Params:
    """Σ w_k θ_k / Σ w_k over the clients that sent θ, folded in client order so that arrival order can't matter."""
    order = sorted(replies)
    names = dict.fromkeys(name for k in order for name in replies[k].params)
    mean = {}
    for name in names:
        senders = [k for k in order if name in replies[k].params]
        total = sum(replies[k].weight for k in senders)
        if total <= 0:
            raise UserError(
                f"the replies for {name} have a total weight of {total}; no client had anything to train on"
            )
        fold = torch.zeros_like(replies[senders[0]].params[name], dtype=torch.float64)
        for k in senders:
            fold += replies[k].params[name].double() * replies[k].weight
        mean[name] = (fold / total).to(replies[senders[0]].params[name].dtype)
    return mean


# --- momentum that is carried on ------------------------------------------------------------------------------------
# The released codes of the PromptFL family keep one optimiser for all clients: the momentum of one client's last step
# pushes the next one's first. Only for parity with them, and only where clients are simulated one after the other.

HANDED = "velocity."


def handed(inbox: Params) -> Params:
    return {name.removeprefix(HANDED): value for name, value in inbox.items() if name.startswith(HANDED)}


def handed_on(velocity: Params, without: Collection[str] = ()) -> Params:
    return {HANDED + name: value for name, value in velocity.items() if name not in without}


def relay(
    pass_: Pass,
    server: Server,
    cohort: Sequence[int],
    each: Each,
    inbox: Mapping[int, Params] | None = None,
    chain: Params | None = None,
) -> tuple[Server, dict[int, Reply]]:
    """One client after the other, in the cohort's order, each handed the momentum of the one before it that answered.

    With a `chain`, parameters are handed on too: each client begins where the one before it stopped, and `chain`
    holds what the last one reached.
    """
    velocity, replies = handed_on(handed(server.state)), {}
    for k in cohort:
        at = server if chain is None else replace(server, params={**server.params, **chain}, cluster_of={})
        reply = each(pass_, at, [k], {k: {**(inbox or {}).get(k, {}), **velocity}}).get(k)
        if reply is None:
            continue
        velocity |= handed_on(handed(reply.stats))
        replies[k] = replace(reply, stats={n: v for n, v in reply.stats.items() if n not in velocity})
        if chain is not None:
            chain |= reply.params
    return replace(server, state={**server.state, **velocity}), replies
