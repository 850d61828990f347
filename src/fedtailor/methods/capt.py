"""CAPT: a general and class-aware prompts, two clusterings of the clients, a bandit that times global aggregation.

Hou et al., CAPT: Class-Aware Prompt Tuning for Federated Long-Tailed Learning with Vision-Language Model, CVPR 2025.
Notation: P_g → general.ctx, P_c → class.ctx, F → couple.0.*, z' → z, t_g, t_c, t → text features of [P_g, CLASS],
[P_c, CLASS] and [P_g, P_c, CLASS], π → prior, d_k → a client's label counts, λ → lam. Which prompts there are, and
whether F couples them to the image tower, is the tuner: coupled+class_prompt, or one of its parts (Tables 4, 5).
Departures, all of them in docs/methods/capt.md: the integrated prompt has a loss of its own (la; not in Eq. 4),
Comp is over all classes and clients are joined by complete linkage, rows are masked by the batch's classes, P_g has
three rows and P_c one, rewards are measured on held-out data. preset=published takes back all but the last. Beyond
the paper: clusters.by=prompts, without histograms.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from ..algorithms.bandit import BanditSettings
from ..algorithms.clustering import ClusterSettings
from ..algorithms.counts import (
    TABLES,
    accuracy_and_f1,
    class_rows,
    estimate,
    known_counts,
    recount,
    take_census,
    validate,
)
from ..base.errors import UserError
from ..base.rng import number
from ..core import GLOBAL, OWN, Batch, Cluster, Each, Gradient, Me, Method, Model, Params, Reply, Scope, Server
from ..core.losses import log_prior, one_hot, task_loss
from ..core.method import resolve, weighted_mean
from ..core.statistics import Forms, class_counts

SIMILAR, DIVERSE = Cluster("similar"), Cluster("diverse")
MASK = "which class-aware rows get a gradient: of a picture's own class, of the batch's classes, all"


class CAPT(Method):
    share = {"general.*": DIVERSE, "text.*": DIVERSE, "class.*": SIMILAR, "couple.*": GLOBAL}
    neutral = {"ge": 0.0, "lam": 0.0, "prior": False, "mask": "none", "clustering": False}
    neutral |= {"bandit": False, "floor": -1.0}
    short = {name: f"clusters.{name}" for name in ClusterSettings.model_fields}
    short |= {name: f"schedule.{name}" for name in BanditSettings.model_fields}

    ge: float = Field(1.0, ge=0, description="weight of L_ge, Eq. 1")
    lam: float = Field(1.0, ge=0, title="λ", description="weight of L_ca, Eq. 4")
    la: float = Field(1.0, ge=0, description="weight of the integrated prompt's logit-adjusted cross-entropy")
    prior: bool = Field(True, title="π", description="global label proportions in the losses, Eq. 2")
    mask: Literal["sample", "batch", "none"] = Field("batch", description=MASK)
    clustering: bool = Field(True, description="false: every client a cluster of its own (Table 4)")
    clusters: ClusterSettings = ClusterSettings()
    floor: float = Field(0.0, ge=-1, lt=1, description="share of a class above which a client's rows count; -1: FedAvg")
    bandit: bool = Field(True, description="false: global aggregation every `period` rounds (Table 5)")
    schedule: BanditSettings = BanditSettings()
    period: int = Field(1, ge=1, description="rounds between global aggregations without the bandit")
    last: bool = Field(True, description="aggregate after the last round, whatever the bandit says")

    @property
    def ending(self) -> int:
        return int(self.last and (self.bandit or self.period > 1))

    @property
    def counted(self) -> bool:
        """Whether clients send their label counts."""
        return self.informed and self.clusters.by == "counts"

    @property
    def estimated(self) -> bool:
        """Whether the server takes them from how far class-aware prompts have moved."""
        return self.informed and self.clusters.by == "prompts"

    @property
    def informed(self) -> bool:
        return self.prior or self.clustering or self.floor >= 0

    @property
    def mixing(self) -> str:
        return "masks rows by the classes of a batch; take method.mask=sample" if self.mask == "batch" else ""

    def scopes(self, theta: Params) -> dict[str, Scope]:
        return resolve(self.share, theta, idle_too=True)  # a tuner may lack one of the prompts, or the coupling

    def names(self, theta: Params, scope: Scope) -> list[str]:
        return [name for name, owner in self.scopes(theta).items() if owner == scope]

    def init(self, model: Model, rng: torch.Generator) -> Params:
        theta = super().init(model, rng)
        if self.estimated and not self.names(theta, SIMILAR):
            raise UserError("by=prompts goes by class-aware prompts; take tuner=coupled+class_prompt, or by=counts")
        return theta

    def round(self, server: Server, cohort: Sequence[int], each: Each) -> Server:
        if self.estimated and self.bandit and not server.validates:
            raise UserError(
                "by=prompts is to send no counts, and the bandit's reward is tables of what clients hold out; "
                "take method.bandit=false, or let the server validate, as with data.server=0.1"
            )
        if self.counted:
            server = take_census(server, self.census, each)
        server, arms = self.schedule.draw(server) if self.bandit else (server, [self.period])
        unite = server.round % arms[-1] == 0 or (self.last and server.round == server.rounds - 1)
        inbox = {"since": server.state.get("since", torch.tensor(0)), "whole": torch.tensor(unite)}
        inbox["held"] = torch.tensor(self.bandit and not server.validates)
        if self.informed and "counts" in server.state:  # estimates come after the first round
            inbox["counts"] = known_counts(server).sum(0)
        replies = each(self.train, server, cohort, dict.fromkeys(cohort, inbox))  # Alg. 1, l. 4–6
        server = recount(server, replies) if self.counted else server
        server = self.estimate(server, replies) if self.estimated else server
        server, members = self.clustered(server, replies)  # Alg. 1, l. 7–10
        server = self.united(server, members) if unite else server  # Alg. 1, l. 11, 12
        if unite and self.bandit:
            examined = each(self.examine, server, [OWN] if server.validates else cohort)
            server = self.schedule.learn(server, arms, accuracy_and_f1(examined.values()))  # Alg. 1, l. 13
        return server

    def estimate(self, server: Server, replies: Mapping[int, Reply]) -> Server:
        (name,), scopes = self.names(server.params, SIMILAR), self.scopes(server.params)
        moved = {k: r.params[name] - server.params_for(k, scopes)[name] for k, r in replies.items()}
        return estimate(server, moved, {k: r.weight for k, r in replies.items()})

    def census(self, model: Model, me: Me, theta: Params) -> Reply:
        return Reply({}, stats={"counts": me.data.counts()})

    def train(self, model: Model, me: Me, theta: Params) -> Reply:
        inbox, coupling = me.inbox, self.names(theta, GLOBAL)
        if me.memory.get("since") == inbox["since"]:  # no global aggregation since this client trained F_k
            theta = theta | {name: me.memory[name].to(theta[name].device) for name in coupling}
        data = me.data.split(self.schedule.holdout)[0] if inbox["held"] else me.data
        reply = self.local_update(self.gradient(model, {**theta, **inbox}), me, theta, data)
        sent = {n: v for n, v in reply.params.items() if inbox["whole"] or n not in coupling}
        kept = {"since": inbox["since"], **{name: reply.params[name] for name in coupling}}
        stats = {**reply.stats, "counts": me.data.counts()} if self.counted else reply.stats
        return replace(reply, params=sent, stats=stats, keep=kept)

    def gradient(self, model: Model, start: Params) -> Gradient:
        whole = super().gradient(model, start)

        def gradient(theta: Params, batch: Batch) -> Params:
            rows = self.names(theta, SIMILAR)
            return {name: masked(g, batch) if name in rows else g for name, g in whole(theta, batch).items()}

        return gradient if self.mask == "batch" else whole

    def loss(self, model: Model, theta: Params, batch: Batch, start: Params) -> Tensor:
        bend, z = model.bend(theta), model.image(theta, batch.x, batch.rng)
        known = self.prior and "counts" in start
        log_pi = log_prior(start["counts"]).to(z.device) if known else z.new_zeros(model.classes)
        general, own = bend.shared is not None, bend.own is not None
        weights = {"shared": self.ge * general, "own": self.lam * own}
        # With prompts of one kind, the integrated prompt is that kind's: its loss is not counted twice.
        weights["both"] = self.la if (general and own) or not any(weights.values()) else 0.0
        losses = self.losses(model, theta, batch, z, log_pi, [rows for rows, weight in weights.items() if weight])
        return sum((weights[rows] * loss for rows, loss in losses.items()), z.new_zeros(()))  # Eq. 4

    def losses(
        self, model: Model, theta: Params, batch: Batch, z: Tensor, log_pi: Tensor, sets: Sequence[str]
    ) -> dict[str, Tensor]:
        """Of images z' with the classes' sentences, with P_g ("shared"), with P_c ("own") or with both."""
        scores = self.scores(model, theta, batch, z, sets)
        adjusted = {rows: s if rows == "shared" else s + log_pi for rows, s in scores.items()}
        return {rows: task_loss(s, batch) for rows, s in adjusted.items()}  # Eqs. 1, 2

    def scores(self, model: Model, theta: Params, batch: Batch, z: Tensor, sets: Sequence[str]) -> dict[str, Tensor]:
        """cos(t_g, z')/τ, cos(t_c, z')/τ, cos(t, z')/τ."""
        scale, own = model.clip.scale, self.names(theta, SIMILAR)
        if self.mask != "sample":
            return {rows: scale * z @ t.T for rows, t in model.texts(theta, sets, batch.rng).items()}
        # P_c has its gradient from a second pass, of the same value: the picture's own class there, nothing else.
        fixed = model.texts({n: v.detach() if n in own else v for n, v in theta.items()}, sets, batch.rng)
        free = model.texts({n: v if n in own else v.detach() for n, v in theta.items()}, sets, batch.rng)
        of_own = {rows: present(batch, len(t)) * (z.detach() @ (t - t.detach()).T) for rows, t in free.items()}
        return {rows: scale * (z @ t.T + of_own[rows]) for rows, t in fixed.items()}

    def clustered(self, server: Server, replies: Mapping[int, Reply]) -> tuple[Server, dict[int, Reply]]:
        """Cluster the cohort in both ways and average within; also the replies as their clusters now have them."""
        cohort, members, seed = sorted(replies), dict(replies), number(server.seed, "clusters", server.round)
        alone = range(len(cohort))
        counts = known_counts(server) if self.clustering else None
        labels = (alone, alone) if counts is None else self.clusters.labels(counts[cohort], seed, counts.sum(0))
        for scope, label in zip((SIMILAR, DIVERSE), labels, strict=True):  # Eqs. 5, 6
            groups, names = dict(zip(cohort, label, strict=True)), self.names(server.params, scope)
            own = {k: Reply({name: replies[k].params[name] for name in names}) for k in cohort}
            means = {g: weighted_mean({k: own[k] for k in cohort if groups[k] == g}) for g in groups.values()}
            members = {k: replace(r, params={**r.params, **means[groups[k]]}) for k, r in members.items()}
            server = server.regrouped(scope.cluster, groups, means)
        return server, members

    def united(self, server: Server, members: Mapping[int, Reply]) -> Server:
        """One model for all again; every cluster is dissolved."""
        params, order = {**server.params, **weighted_mean(members)}, sorted(members)
        for name in self.names(server.params, SIMILAR) if self.floor >= 0 else ():
            rows = torch.stack([members[k].params[name] for k in order])
            params[name] = class_rows(server.params[name], rows, server.state["counts"][order], self.floor)
        return replace(server, params=params, clusters={}, cluster_of={}).remember(since=torch.tensor(server.round + 1))

    def examine(self, model: Model, me: Me, theta: Params) -> Reply:
        return Reply({}, stats=validate(model, me, self.schedule.holdout))

    def statistics(self, name: str, model: Model, theta: Params) -> Forms:
        train = ("counts",) if self.counted else ()
        sent = {"census": ("counts",), "train": train, "examine": TABLES}.get(name, ())
        return dict.fromkeys(sent, class_counts(model.classes))

    def decisions(self, server: Server) -> dict[str, dict[str, object]]:
        aggregated = int(server.state["since"]) == server.round
        return {"bandit": self.schedule.describe(server.state, aggregated)} if self.bandit else {}


def masked(gradient: Tensor, batch: Batch) -> Tensor:
    """(C, M, D) with zeros for classes that the batch does not have."""
    return gradient * present(batch, len(gradient)).any(0)[:, None, None]


def present(batch: Batch, classes: int) -> Tensor:
    """(B, C): whether it is a picture's class, or one of its candidates."""
    return one_hot(batch.y, classes) + (0 if batch.candidates is None else batch.candidates) > 0
