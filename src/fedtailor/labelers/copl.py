"""CoPL: clients say how many sure pictures of each class they have, the server evens the classes out among them.

Guo et al., Cooperative Pseudo Labeling for Unsupervised Federated Classification, ICCV 2025, §3.3.
Notation: p(x) → probs, D_k^est → filtered, u_{k,c} → votes, ũ_{k,c} → quotas, τ1 and τ2 → the two medians.
Departures, as released and all of them in docs/methods/fedcopl.md: medians are of a client's own pictures, a class
without votes gets a small quota, and a class's pictures are chosen among those predicted as it (pool=all: among all).
Beyond the paper: prior=estimated, for classes that are not equally frequent (docs/labelers.md).
"""

import math
from collections.abc import Sequence
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from ..core import Each, Form, Forms, Me, Model, Params, Reply, Server, class_counts
from ..core.losses import entropy as shannon
from .base import INDEX, LABEL, Labeler
from .zeroshot import probabilities

WORTH = 3.0  # pictures a class by which a client's own frequencies are held to the federation's
STEPS = 20  # of expectation and maximisation, after which little moves
LEAST = 1e-8  # of a class's mean probability, so that a class that no picture resembles can be divided by it
SURENESS, KLASS = "copl.sureness", "copl.klass"  # kept between the two passes


class CoPL(Labeler):
    singly = "evens out classes by the votes of each client"

    refresh: int = Field(5, ge=0, title="R", description="rounds between two labelings; 0: once, at the beginning")
    confidence: bool = Field(True, description="only pictures surer than the client's median vote, Eq. 2")
    entropy: bool = Field(True, description="only pictures of less entropy than the client's median vote, Eq. 2")
    allocation: bool = Field(True, description="the server evens out classes, Eq. 3; off: a quota is what was voted")
    prior: Literal["uniform", "estimated"] = Field(
        "uniform", description="how frequent classes are: all alike, as in the paper; or as clients' predictions tell"
    )
    pool: Literal["argmax", "all"] = Field("argmax", description="a class's pictures: predicted as it, or any")

    def label(self, server: Server, clients: Sequence[int], each: Each) -> Server:
        """Quotas are for those who voted; that of a client who is lost before it selects goes unused."""
        inbox = None
        if self.corrects(server.round):
            sums = each(self.measure, server, clients)
            mean = torch.stack([sums[k].stats["sums"] for k in sorted(sums)]).sum(0)
            inbox = {k: {"mean": mean / mean.sum().clamp_min(LEAST)} for k in sums}
            clients = sorted(sums)
        replies = each(self.vote, server, clients, inbox)
        who = sorted(replies)
        quota = torch.stack([replies[k].stats["votes"] for k in who])
        if self.allocation:
            total = sum(int(replies[k].stats["size"]) for k in who)
            estimated = self.prior == "estimated"
            counts = torch.stack([replies[k].stats["counts"] for k in who]).sum(0) if estimated else None
            quota = quotas(quota, total, server.round // max(self.refresh, 1), counts)
        each(self.select, server, who, {k: {"quota": row} for k, row in zip(who, quota, strict=True)})
        return server

    def corrects(self, t: int) -> bool:
        """Zero-shot CLIP favours some classes and knows nothing of clients; a client's own model has learned of its."""
        return self.prior == "estimated" and t == 0

    def measure(self, model: Model, me: Me, theta: Params) -> Reply:
        return Reply({}, stats={"sums": probabilities(model, me).sum(0)})

    def vote(self, model: Model, me: Me, theta: Params) -> Reply:
        probs = probabilities(model, me)
        if self.corrects(me.round):
            probs = adapted(probs, me.inbox["mean"])
        sureness, klass = claims(probs, self.pool)
        up = {"votes": votes(probs, self.confidence, self.entropy), "size": torch.tensor(len(probs))}
        if self.prior == "estimated":
            up["counts"] = probs.sum(0)
        return Reply({}, stats=up, keep={SURENESS: sureness, KLASS: klass})

    def select(self, model: Model, me: Me, theta: Params) -> Reply:
        chosen, y = select(me.memory[SURENESS], me.memory[KLASS], me.inbox["quota"])
        index = chosen % max(len(me.data), 1)  # claims go class by class, so that this is the picture
        return Reply({}, keep={INDEX: index, LABEL: y, **{n: me.memory[n][:0] for n in (SURENESS, KLASS)}})

    def statistics(self, name: str, model: Model, theta: Params) -> Forms:
        sums = class_counts(model.classes, torch.float32)
        vote = {"votes": class_counts(model.classes), "size": Form(torch.tensor(0), counts=True)}
        vote |= {"counts": sums} if self.prior == "estimated" else {}
        return {"measure": {"sums": sums}, "vote": vote}.get(name, {})


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


def adapted(probs: Tensor, mean: Tensor, worth: float = WORTH, steps: int = STEPS) -> Tensor:
    """(n, C) probabilities under a client's own class frequencies w, where CLIP's mean are the federation's, (C,).

    w is what EM makes of the client's pictures (Saerens, Latinne and Decaestecker 2002) and of `worth` more a class, as
    frequent as in the federation: p(x) · w / mean, normalised. What CLIP favours everywhere is in both, w and mean.
    """
    mean, own = mean.clamp_min(LEAST), probs
    for _ in range(steps):
        w = (own.sum(0) + worth * len(mean) * mean) / (len(probs) + worth * len(mean))
        own = probs * (w / mean)
        own = own / own.sum(1, keepdim=True)
    return own


def levelled(counts: Tensor, total: float | Tensor) -> Tensor:
    """(C,) parts of a total, as even as can be: no class has more than it counts."""
    ordered = counts.sort().values
    even = (total - (ordered.cumsum(0) - ordered)) / torch.arange(len(counts), 0, -1)  # if all smaller ones are full
    fits = even <= ordered
    return counts.clamp_max(even[fits][0]) if fits.any() else counts


def quotas(votes: Tensor, total: int, refresh: int, counts: Tensor | None = None) -> Tensor:
    """(K, C) pictures of each class that each client shall take, in the `refresh`-th labeling (from 0) of `total`.
    `counts`, (C,): how many of each class there are, if that is estimated; else all are taken to be alike."""
    K, C = votes.shape
    u = votes.float()
    M = (u.sum() / C).ceil() if counts is None else levelled(counts, u.sum()).ceil()
    shared = (u / u.sum(0) * M).ceil()  # Eq. 3
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
