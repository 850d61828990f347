"""A federated method: FedAvg, unless it says otherwise.

It may change the loss, the client's pass, who owns which parameter, how the server averages replies, or the whole
round. It never touches an engine, a file or another client.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..base.errors import UserError
from .losses import task_loss
from .model import Model
from .optim import Gradient, LocalTraining, gradient_of, optimise
from .statistics import Forms
from .types import FIXED, GLOBAL, LOCAL, Batch, Cluster, Each, Me, Options, Params, Reply, Samples, Scope, Server


class Method(Options):
    """FedAvg. A paper is a subclass; its fields are the paper's hyper-parameters, in the paper's letters."""

    share: ClassVar[Mapping[str, Scope]] = {"*": GLOBAL}  # pattern → scope, first match wins
    neutral: ClassVar[Mapping[str, Any]] = {}  # the values at which it must equal FedAvg bit for bit
    short: ClassVar[Mapping[str, str]] = {}  # short spellings of nested options: "arms" → "schedule.arms"
    trains: ClassVar[bool] = True  # False: nothing is learned, no round is run
    teacher: ClassVar[bool] = False  # True: compares with zero-shot CLIP, whose features are then cached
    reads: ClassVar[str] = "features"  # "patches": looks at every patch's token, not only at the picture's
    made: ClassVar[tuple[str, ...]] = ()  # patterns of shared parameters that the server computes rather than averages
    lent: ClassVar[str] = ""  # caption of a shared model that is tested with the mean of what clients keep; empty: none
    class_rows: ClassVar[tuple[str, ...]] = ()  # as Tuner.class_rows, of what the method adds to the tuner's parameters
    iterates: ClassVar[bool] = False  # True: a prediction is searched for until it is good enough, picture by picture
    by_picture: ClassVar[bool] = False  # True: see `mixing`
    everyone_first: ClassVar[bool] = False  # all clients in round 0, so that each owns its local parameters

    local: LocalTraining = LocalTraining()  # epochs, batch, lr …

    @property
    def closing(self) -> int:
        """How many rounds over all clients follow the last shared one."""
        return 0

    @property
    def ending(self) -> int:
        """How many of the last shared rounds are unlike the others: what reads `server.rounds` has some. A run that has
        done one of them cannot be made longer."""
        return 0

    @property
    def mixing(self) -> str:
        """How a client's training mixes its pictures; empty where the gradient of a batch is the mean of its pictures',
        each by itself, and all that a client sends are parameters that `local_update` reached by it, and counts to each
        of which a picture adds 1 at most."""
        return "" if self.by_picture else "does not say that its clients train picture by picture (Method.by_picture)"

    @property
    def singly(self) -> str:
        """Why the server has to see each client's reply by itself. Empty where it sends all of them the same, and does
        the same if each replies the mean of all: of parameters by weight, of statistics that are no counts evenly."""
        if any(isinstance(scope, Cluster) for scope in self.share.values()):
            return "averages in clusters"
        kind, base = type(self), Method
        plain = (kind.aggregate, kind.round, kind.close) == (base.aggregate, base.round, base.close)
        return "" if plain else "does not say that the mean of their replies is enough for its server (Method.singly)"

    @property
    def evenly(self) -> bool:
        """Whether all clients of a round count the same, however many samples they have."""
        return False

    def scopes(self, theta: Params) -> dict[str, Scope]:
        """Who owns each parameter."""
        return resolve(self.share, theta)

    def init(self, model: Model, rng: torch.Generator) -> Params:
        return model.init(rng)

    def loss(self, model: Model, theta: Params, batch: Batch, start: Params) -> Tensor:
        """Of one batch; `start` is what the client was given when its pass began: parameters and inbox."""
        return task_loss(self.logits(model, theta, batch.x, batch.rng), batch)

    def logits(self, model: Model, theta: Params, x: Tensor, rng: torch.Generator | None = None) -> Tensor:
        """(B, C) that it trains on and predicts by."""
        return model.logits(theta, x, rng)

    def gradient(self, model: Model, start: Params) -> Gradient:
        """What a client's optimiser follows, as a function of parameters and batch."""
        return gradient_of(lambda theta, batch: self.loss(model, theta, batch, start))

    def train(self, model: Model, me: Me, theta: Params) -> Reply:
        fixed = {name for name, scope in self.scopes(theta).items() if scope == FIXED}
        return self.local_update(self.gradient(model, {**theta, **me.inbox}), me, theta, me.data, fixed)

    def local_update(
        self, gradient: Gradient, me: Me, theta: Params, data: Samples, fixed: Collection[str] = ()
    ) -> Reply:
        """The reply of a client that follows a gradient over its data."""
        trained = optimise(gradient, theta, data, self.local, me.round, me.rng, fixed, steps=me.steps)
        return Reply(trained, weight=len(data))

    def aggregate(self, server: Server, replies: Mapping[int, Reply]) -> Server:
        mean = weighted_mean(even(replies) if self.evenly else replies)
        return replace(server, params={**server.params, **mean})

    @classmethod
    def everyone(cls, clients: int) -> list[int]:
        """All who hold training data."""
        return list(range(clients))

    def cohort(self, t: int, clients: int, fraction: float, rng: torch.Generator) -> list[int]:
        """Who takes part in round t: max(int(fraction · K), 1) clients, uniformly."""
        everyone = self.everyone(clients)
        if self.everyone_first and t == 0:
            return everyone
        chosen = torch.randperm(len(everyone), generator=rng)[: max(int(fraction * len(everyone)), 1)]
        return sorted(everyone[i] for i in chosen.tolist())

    def round(self, server: Server, cohort: Sequence[int], each: Each) -> Server:
        return self.aggregate(server, each(self.train, server, cohort))

    def close(self, server: Server, cohort: Sequence[int], each: Each) -> Server:
        """A closing round, over all clients."""
        return server

    def predict(self, model: Model, theta: Params, x: Tensor) -> Tensor:
        """(B, C) logits of a client's model."""
        return self.logits(model, theta, x)

    def predict_shared(self, model: Model, theta: Params, x: Tensor) -> Tensor:
        """(B, C) logits of the server's model, where LOCAL parameters have their first values."""
        return self.predict(model, theta, x)

    def branches(self, model: Model, theta: Params, x: Tensor) -> tuple[Tensor, Tensor]:
        """(l_G, l_P), (B, C) each, of a method whose logits are the sum of a global and a personal branch's."""
        raise UserError(f"{type(self).__name__} has no global and personal branch")

    def statistics(self, name: str, model: Model, theta: Params) -> Forms:
        """What the pass of that name sends up besides parameters; whatever else it sends is refused. `theta`: every
        parameter's first value."""
        return {}

    def decisions(self, server: Server) -> dict[str, dict[str, object]]:
        """What the server decided in the round that just ended, by the name of the diagnostic that records it."""
        return {}


class TwoBranches(Method):
    """A model made twice, from two draws: a "global." branch that is shared and a "local." one that stays."""

    share = {"global.*": GLOBAL, "local.*": LOCAL}

    def init(self, model: Model, rng: torch.Generator) -> Params:
        drawn = {"global.": model.init(rng), "local.": model.init(rng)}
        return {prefix + name: value for prefix, theta in drawn.items() for name, value in theta.items()}

    def predict_shared(self, model: Model, theta: Params, x: Tensor) -> Tensor:
        return model.logits(branch(theta, "global."), x)


def resolve(share: Mapping[str, Scope], names: Mapping[str, Tensor], idle_too: bool = False) -> dict[str, Scope]:
    """The scope of every parameter. Each must match a pattern, and (unless `idle_too`) each pattern a parameter."""
    found = {name: next((p for p in share if fnmatchcase(name, p)), None) for name in names}
    lost, idle = [n for n, p in found.items() if p is None], [p for p in share if p not in found.values()]
    if names and (lost or (idle and not idle_too)):
        raise UserError(
            f"share does not fit this tuner: parameters without a pattern: {', '.join(lost) or 'none'}; "
            f"patterns without a parameter: {', '.join(idle) or 'none'}; parameters are {', '.join(names)}"
        )
    return {name: share[pattern] for name, pattern in found.items() if pattern is not None}


def branch(theta: Params, prefix: str) -> Params:
    """The parameters under a prefix, without it."""
    return {name.removeprefix(prefix): value for name, value in theta.items() if name.startswith(prefix)}


def even(replies: Mapping[int, Reply]) -> dict[int, Reply]:
    """Every client counts the same, however many samples it has."""
    return {k: replace(reply, weight=1.0) for k, reply in replies.items()}


def weighted_mean(replies: Mapping[int, Reply]) -> Params:
    """Σ w_k θ_k / Σ w_k over the clients that sent θ, added up in client order so that arrival order can't matter."""
    mean, ordered = {}, [replies[k] for k in sorted(replies)]
    for name in dict.fromkeys(name for reply in ordered for name in reply.params):
        senders = [reply for reply in ordered if name in reply.params]
        total, first = sum(reply.weight for reply in senders), senders[0].params[name]
        if total <= 0:
            raise UserError(f"replies for {name} have a total weight of {total}; no client had anything to train on")
        fold = torch.zeros_like(first, dtype=torch.float64)
        for reply in senders:
            fold += reply.params[name].double() * reply.weight
        mean[name] = (fold / total).to(first.dtype)
    return mean
