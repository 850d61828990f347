"""Momentum that is handed on from client to client, as in the released codes of the PromptFL family.

They keep one optimiser for all clients: the momentum of one client's last step pushes the next one's first. Only for
parity with them: it goes through the server, and clients have to train one after the other.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from ...core import LOCAL, Each, Gradient, Me, Method, Model, Params, Pass, Reply, Samples, Server, branch, optimise
from ...core.statistics import Form, Forms

VELOCITY, CHAIN = "velocity.", "chain."  # before a parameter's name, in stats, inboxes and the server's state


class CarriedMomentum(Method):
    """Mixin: before the published method among the bases."""

    neutral = {}
    chained: ClassVar[bool] = False  # True: each client also starts from the parameters that the one before it reached

    carry: Literal["shared", "all"] = Field(
        "shared", description="whose momentum goes on; all: local ones' too, a leak"
    )

    @model_validator(mode="after")
    def has_momentum(self) -> Self:
        if self.local.optimiser != "sgd" or self.local.momentum == 0:
            raise ValueError("carrying momentum on needs local.optimiser=sgd and a local.momentum above 0")
        return self

    @property
    def mixing(self) -> str:
        return "hands momentum on from client to client"

    @property
    def singly(self) -> str:
        return "asks one client after the other"

    def round(self, server: Server, cohort: Sequence[int], each: Each) -> Server:
        chain = branch(server.state, CHAIN) if self.chained else None
        relay = Relay(each, self.train, under(server.state, VELOCITY), chain)
        after = super().round(server, cohort, relay)
        return after.remember(**relay.velocity, **{CHAIN + name: value for name, value in (relay.chain or {}).items()})

    def local_update(
        self, gradient: Gradient, me: Me, theta: Params, data: Samples, fixed: Collection[str] = ()
    ) -> Reply:
        velocity = branch(me.inbox, VELOCITY)
        trained = optimise(gradient, theta, data, self.local, me.round, me.rng, fixed, velocity)
        stays = {n for n, scope in self.scopes(theta).items() if scope == LOCAL and self.carry == "shared"}
        return Reply(trained, len(data), {VELOCITY + n: value for n, value in velocity.items() if n not in stays})

    def statistics(self, name: str, model: Model, theta: Params) -> Forms:
        more = {VELOCITY + n: Form(v, optional=True) for n, v in theta.items()} if name == "train" else {}
        return {**super().statistics(name, model, theta), **more}


@dataclass
class Relay:
    """An engine that runs one pass client after client, in the cohort's order, and all others as the engine does."""

    each: Each
    relayed: Pass
    velocity: Params
    chain: Params | None = None  # what the last client reached, where parameters are handed on too

    def __call__(
        self, pass_: Pass, server: Server, cohort: Sequence[int], inbox: Mapping[int, Params] | None = None
    ) -> dict[int, Reply]:
        if pass_ != self.relayed:
            return self.each(pass_, server, cohort, inbox)
        replies = {}
        for k in cohort:
            chain = self.chain
            at = server if chain is None else replace(server, params={**server.params, **chain}, cluster_of={})
            reply = self.each(pass_, at, [k], {k: {**(inbox or {}).get(k, {}), **self.velocity}}).get(k)
            if reply is None:  # the next one goes on from the one before
                continue
            self.velocity = self.velocity | under(reply.stats, VELOCITY)
            self.chain = None if chain is None else chain | reply.params
            replies[k] = replace(reply, stats={n: v for n, v in reply.stats.items() if n not in self.velocity})
        return replies


def under(params: Params, prefix: str) -> Params:
    return {name: value for name, value in params.items() if name.startswith(prefix)}
