"""SCAFFOLD: control variates take clients' drift out of their steps.

Karimireddy et al., SCAFFOLD: Stochastic Controlled Averaging for Federated Learning, ICML 2020.
Notation: x → theta, y_i → what a client reaches, c, c_i → "scaffold.*" in the server's state and the client's memory,
K → steps of a pass, η_l → local.lr, η_g → eta_g.
Departures: none. The new c_i is option II of Algorithm 1, which holds for plain SGD at one rate; all else is refused.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Self

import torch
from pydantic import Field, model_validator

from ..core import Batch, Each, Form, Forms, Gradient, LocalTraining, Me, Method, Model, Params, Reply, Server, branch
from ..core.method import even, weighted_mean

ALL, MINE = "scaffold.all.", "scaffold.mine."  # before a parameter's name: c, c_i
CLIENTS = "scaffold.clients"  # in the server's state: N


class Scaffold(Method):
    local: LocalTraining = LocalTraining(momentum=0)
    eta_g: float = Field(1.0, gt=0, allow_inf_nan=False, title="η_g", description="the server's learning rate")

    @model_validator(mode="after")
    def plain(self) -> Self:
        it = self.local
        if it.optimiser != "sgd" or it.momentum or it.schedule != "constant" or it.clip:
            raise ValueError("scaffold needs plain sgd: local.optimiser=sgd local.momentum=0 local.schedule=constant")
        return self

    @property
    def mixing(self) -> str:
        return "would have its control variates clipped with each picture's gradient"

    @property
    def singly(self) -> str:
        return ""  # means, and how many replied

    @property
    def evenly(self) -> bool:
        return True

    def round(self, server: Server, cohort: Sequence[int], each: Each) -> Server:
        server = grown(server)
        c = {name: value for name, value in server.state.items() if name.startswith(ALL)}
        return self.aggregate(server, each(self.train, server, cohort, dict.fromkeys(cohort, c)))

    def train(self, model: Model, me: Me, theta: Params) -> Reply:
        follow, steps = self.gradient(model, {**theta, **me.inbox, **me.memory}), 0

        def counted(now: Params, batch: Batch) -> Params:
            nonlocal steps
            steps += 1
            return follow(now, batch)

        reply = self.local_update(counted, me, theta, me.data)
        c, c_i, far = branch(me.inbox, ALL), branch(me.memory, MINE), max(steps, 1) * self.local.lr
        change = {n: (theta[n] - y).cpu() / far - c.get(n, 0) for n, y in reply.params.items() if steps}  # l. 12, 14
        new = {MINE + n: c_i.get(n, 0) + d for n, d in change.items()}
        return replace(reply, stats={ALL + n: d for n, d in change.items()}, keep=new)

    def gradient(self, model: Model, start: Params) -> Gradient:
        plain, c, c_i = super().gradient(model, start), branch(start, ALL), branch(start, MINE)
        drift = {n: model.put(torch.as_tensor(c.get(n, 0) - c_i.get(n, 0))) for n in {**c, **c_i}}
        return lambda theta, batch: {n: g + drift.get(n, 0) for n, g in plain(theta, batch).items()}  # l. 10

    def aggregate(self, server: Server, replies: Mapping[int, Reply]) -> Server:
        x, mean = server.params, weighted_mean(even(replies))
        params = {n: y + (self.eta_g - 1) * (y - x[n]) for n, y in mean.items()}  # l. 17: x + η_g (mean − x)
        changes = weighted_mean({k: Reply(r.stats) for k, r in replies.items()})
        c = {n: server.state.get(n, 0) + len(replies) / server.clients * d for n, d in changes.items()}  # l. 17
        return replace(server, params={**x, **params}, state={**server.state, **c})

    def statistics(self, name: str, model: Model, theta: Params) -> Forms:
        return {ALL + n: Form(v, optional=True) for n, v in theta.items()} if name == "train" else {}


def grown(server: Server) -> Server:
    """c is the mean of N clients' c_i, those who have left among them; of those who came since, it is 0."""
    before = int(server.state.get(CLIENTS, torch.tensor(server.clients)))
    c = {n: v * (before / server.clients) for n, v in server.state.items() if n.startswith(ALL)}
    return server.remember(**c, **{CLIENTS: torch.tensor(server.clients)})
