"""The vocabulary in which every method is written.

A method is FedAvg unless it says otherwise: it may change the loss, the client's pass, who owns which parameter, how
the server folds replies, or the whole round. It never touches an engine, a file or another client.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any, ClassVar

import torch
from pydantic import BaseModel, ConfigDict
from torch import Tensor

from ..base.errors import UserError
from .aggregation import weighted_mean
from .losses import task_loss
from .model import Model
from .optim import Gradient, LocalTraining, gradient_of, optimise
from .relay import handed, handed_on, relay
from .types import FIXED, GLOBAL, LOCAL, OWN, Batch, Each, Me, Params, Pass, Reply, Samples, Scope, Server


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
    short: ClassVar[Mapping[str, str]] = {}  # nested settings that may be given by one name: name → path

    local: LocalTraining = LocalTraining()  # how a client descends: epochs, batch, lr …

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
        trained = optimise(gradient, theta, data, self.local, me.round, me.rng, fixed, velocity)
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
