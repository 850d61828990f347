"""What a method is made of: parameters and their owners, what a pass sees and returns, the server, the engine."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import torch
from pydantic import BaseModel
from torch import Tensor

Params = dict[str, Tensor]  # flat, dotted names: "text.ctx", "visual.block11.q.A"


class Options(BaseModel, frozen=True, extra="forbid"):
    """Settings of a part of a run, under its name on the command line."""


@dataclass(frozen=True)
class Scope:
    """Who owns a parameter."""

    kind: str
    cluster: str = ""

    def __str__(self) -> str:
        return f"cluster {self.cluster}" if self.cluster else self.kind


GLOBAL = Scope("global")  # one copy, on the server
LOCAL = Scope("local")  # one copy per client, which never leaves it
FIXED = Scope("fixed")  # made from the seed by everyone, never trained, never sent


class Cluster(Scope):
    """One copy for each cluster of the clustering of that name; clients in no cluster get the server's copy."""

    def __init__(self, cluster: str) -> None:
        super().__init__("cluster", cluster)


@dataclass(frozen=True)
class View:
    """Some of a client's pictures, without labels."""

    x: Tensor  # what goes into the image tower: pixels, cached tokens or cached features
    index: Tensor  # (B,) which of the client's samples these are
    plain: Tensor | None = None  # (B, D) features of zero-shot CLIP, where they are cached too


@dataclass(frozen=True)
class Batch:
    x: Tensor
    y: Tensor  # (B,) labels, given or pseudo
    index: Tensor
    rng: torch.Generator | None = None  # for dropout; None outside training
    plain: Tensor | None = None
    candidates: Tensor | None = None  # (B, C) weights, where a labeler leaves several classes open
    balance: Balance | None = None  # reweights the task loss's gradient


class Balance(Protocol):
    """What a rebalancer does to one client's task loss, for one pass."""

    def loss(self, logits: Tensor, batch: Batch) -> Tensor:
        """The task loss, whose gradient on the logits is reweighted."""

    def keep(self) -> Params:
        """What the client keeps until its next pass; every name begins with "rebalance."."""


class Rebalancer(Options):
    """A hold on every task loss of a client, whatever the method, that reweights its gradient by class."""

    @abstractmethod
    def begin(self, memory: Params, counts: Tensor, rng: torch.Generator) -> Balance:
        """For a pass of a client that has so many samples of each class, (C,), and kept `memory`."""


class Samples(Protocol):
    """A client's training data. Where labels are not given, there is no way to them from here."""

    def __len__(self) -> int: ...
    @property
    def labels(self) -> Tensor: ...
    @property
    def fixed(self) -> bool:
        """Whether a picture looks the same every time: nothing is augmented."""

    def counts(self) -> Tensor: ...
    def views(self, size: int = 512) -> Iterator[View]: ...
    def batches(self, size: int, drop_last: bool, rng: torch.Generator) -> Iterator[Batch]: ...
    def some(self, index: Tensor, rng: torch.Generator) -> Batch:
        """Those in these places."""

    def labelled(self, index: Tensor, y: Tensor, candidates: Tensor | None = None) -> Samples: ...
    def unlabelled(self) -> Samples:
        """Those without a label of their own, in order."""

    def completed(self, index: Tensor, y: Tensor, candidates: Tensor | None = None) -> Samples:
        """Those with a label of their own, and some of `unlabelled()`, perhaps some of them twice, under these."""

    def balanced(self, begin: Callable[[Tensor], Balance]) -> Samples:
        """The same samples, whose batches carry the Balance that `begin` makes of their label counts."""

    def split(self, fraction: float) -> tuple[Samples, Samples]:
        """What is left, and a held-out slice of about this fraction: the same two parts every time."""


class Steps(Protocol):
    """Where the gradients come from that a client's optimiser follows, if not simply from its batches."""

    reached: Params | None

    @abstractmethod
    def __call__(
        self,
        gradient: Callable[[Params, Batch], Params],
        theta: Params,
        data: Samples,
        size: int,
        drop_last: bool,
        rng: torch.Generator,
    ) -> Iterator[Params]:
        """Of an epoch, at theta as it is by then."""

    @abstractmethod
    def arrived(self, theta: Params) -> None:
        """Where they have led."""


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
    steps: Steps | None = None  # None: as they are


@dataclass(frozen=True)
class Reply:
    """What a pass returns. Of `params` only what is shared leaves the client; absent means unchanged."""

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
    state: Params = field(default_factory=dict)  # whatever else the method's server side remembers
    rounds: int = 0  # T
    clients: int = 0  # K: how many numbers clients have been given
    gone: frozenset[int] = frozenset()  # of these, who takes no part any more, or not yet
    validates: bool = False  # whether the server has data of its own, reached as the client OWN
    seed: int = 0  # of the run; every draw adds a path to it (base/rng.py)
    new_labels: bool = False  # whether a labeler has given clients new labels in this round

    @property
    def members(self) -> list[int]:
        """The clients that take part."""
        return [k for k in range(self.clients) if k not in self.gone]

    def table(self, name: str, none: Tensor) -> Tensor:
        """A table of the state, with a row for each client (or more): as in `none` for those it does not know yet."""
        known = self.state.get(name, none[:0])
        return torch.cat([known, none[len(known) :]])

    def params_for(self, client: int, scopes: Mapping[str, Scope]) -> Params:
        """What this client is sent: global parameters, and its clusters' copies where it is in one."""
        down = {}
        for name, value in self.params.items():
            where = scopes[name].cluster
            group = self.cluster_of.get(where, {}).get(client)
            down[name] = value if group is None else self.clusters[where][group].get(name, value)
        return down

    def remember(self, **what: Tensor) -> Server:
        return replace(self, state={**self.state, **what})

    def regrouped(self, name: str, groups: Mapping[int, int], copies: Mapping[int, Params]) -> Server:
        """Put some clients (client → group) into new clusters of that clustering, under numbers never used before.
        Clusters without members are forgotten. The state notes who was put where in this round."""
        first = self.round * self.clients
        of = {**self.cluster_of.get(name, {}), **{k: first + group for k, group in groups.items()}}
        held = {**self.clusters.get(name, {}), **{first + group: copy for group, copy in copies.items()}}
        held = {cluster: copy for cluster, copy in held.items() if cluster in of.values()}
        server = replace(self, clusters={**self.clusters, name: held}, cluster_of={**self.cluster_of, name: of})
        return server.remember(**{CLUSTERED + name: torch.tensor([list(groups), list(groups.values())])})


Pass = Callable[..., Reply]  # any method of a Method that takes (model, me, theta)
OWN = -1  # the client number of the server's own data, where it has some
CLUSTERED = "clustered."  # before a clustering's name in the server's state: (2, n) a round's clients and clusters


class Each(Protocol):
    """All that a method sees of an engine: it runs a pass on every client of a cohort.

    The pass's name is its address on the wire. Replies come in any order. A client that does not answer is missing
    from them, is left out of the rest of the round, and is asked again in the next; at least one client answers.
    """

    def __call__(
        self, pass_: Pass, server: Server, cohort: Sequence[int], inbox: Mapping[int, Params] | None = None
    ) -> dict[int, Reply]: ...
