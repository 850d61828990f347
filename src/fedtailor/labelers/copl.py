"""CoPL: clients say how many sure pictures of each class they have, the server evens the classes out among them.

Guo et al., Cooperative Pseudo Labeling for Unsupervised Federated Classification, ICCV 2025, §3.3.
Notation: p(x) → probs, D_k^est → filtered, u_{k,c} → votes, ũ_{k,c} → quotas, τ1 and τ2 → the two medians.
Departures, as released and all of them in docs/methods/fedcopl.md: medians are of a client's own pictures, a class
without votes gets a small quota, and a class's pictures are chosen among those predicted as it (pool=all: among all).
"""

import math
from collections.abc import Sequence
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from ..core import Each, Me, Model, Params, Reply, Server
from ..core.losses import entropy as shannon
from .base import INDEX, LABEL, Labeler
from .zeroshot import probabilities

SURENESS, KLASS = "copl.sureness", "copl.klass"  # kept between the two passes


class CoPL(Labeler):
    refresh: int = Field(5, ge=0, title="R", description="rounds between two labelings; 0: once, at the beginning")
    confidence: bool = Field(True, description="only pictures surer than the client's median vote, Eq. 2")
    entropy: bool = Field(True, description="only pictures of less entropy than the client's median vote, Eq. 2")
    allocation: bool = Field(True, description="the server evens out classes, Eq. 3; off: a quota is what was voted")
    pool: Literal["argmax", "all"] = Field("argmax", description="a class's pictures: predicted as it, or any")

    def label(self, server: Server, clients: Sequence[int], each: Each) -> Server:
        """Quotas are for those who voted; that of a client who is lost before it selects goes unused."""
        replies = each(self.vote, server, clients)
        who = sorted(replies)
        quota = torch.stack([replies[k].stats["votes"] for k in who])
        if self.allocation:
            total = sum(int(replies[k].stats["size"]) for k in who)
            quota = quotas(quota, total, server.round // max(self.refresh, 1))
        each(self.select, server, who, {k: {"quota": row} for k, row in zip(who, quota, strict=True)})
        return server

    def vote(self, model: Model, me: Me, theta: Params) -> Reply:
        probs = probabilities(model, me)
        sureness, klass = claims(probs, self.pool)
        up = {"votes": votes(probs, self.confidence, self.entropy), "size": torch.tensor(len(probs))}
        return Reply({}, stats=up, keep={SURENESS: sureness, KLASS: klass})

    def select(self, model: Model, me: Me, theta: Params) -> Reply:
        chosen, y = select(me.memory[SURENESS], me.memory[KLASS], me.inbox["quota"])
        index = chosen % max(len(me.data), 1)  # claims go class by class, so that this is the picture
        return Reply({}, keep={INDEX: index, LABEL: y, **{n: me.memory[n][:0] for n in (SURENESS, KLASS)}})


def filtered(probs: Tensor, confidence: bool = True, entropy: bool = True) -> Tensor:
    """(n,) which pictures are surer and clearer than the client's median picture, Eq. 2."""
    chosen, top, unclear = torch.ones(len(probs), dtype=torch.bool), probs.amax(1), shannon(probs)
    if confidence and len(probs):
        chosen &= top > top.quantile(0.5)
    if entropy and len(probs):
        chosen &= unclear < unclear.quantile(0.5)
    return chosen


def votes(probs: Tensor, confidence: bool = True, entropy: bool = True) -> Tensor:
    """(C,) filtered pictures predicted as each class."""
    return torch.bincount(probs.argmax(1)[filtered(probs, confidence, entropy)], minlength=probs.shape[1])


def quotas(votes: Tensor, total: int, refresh: int) -> Tensor:
    """(K, C) pictures of each class that each client shall take, in the `refresh`-th labeling (from 0) of `total`."""
    K, C = votes.shape
    u = votes.float()
    shared = (u / u.sum(0) * (u.sum() / C).ceil()).ceil()  # Eq. 3; the inner one is M
    unvoted = math.ceil(total / C / 4 * (refresh + 1) / K)
    return torch.where(u.sum(0) > 0, shared, unvoted).long()


def claims(probs: Tensor, pool: str) -> tuple[Tensor, Tensor]:
    """How sure of which class: each picture of its prediction, or (class by class) each of every class."""
    if pool == "argmax":
        return probs.amax(1), probs.argmax(1)
    return probs.T.flatten(), torch.arange(probs.shape[1]).repeat_interleave(len(probs))


def select(sureness: Tensor, klass: Tensor, quota: Tensor) -> tuple[Tensor, Tensor]:
    """(index, y) of the quota[c] surest of each class c, all if there are fewer; of equals, the earliest."""
    order = sureness.argsort(descending=True, stable=True)
    order = order[klass[order].argsort(stable=True)]
    y = klass[order]
    rank = torch.arange(len(y)) - torch.searchsorted(y, y)  # within its class
    chosen = rank < quota[y]
    return order[chosen], y[chosen]
