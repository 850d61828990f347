"""CAPT: a general and class-aware prompts, two clusterings of the clients, a bandit that times global aggregation.

Hou et al., CAPT: Class-Aware Prompt Tuning for Federated Long-Tailed Learning with Vision-Language Model, CVPR 2025.
Notation: P_g → general.ctx, P_c → class.ctx, F → couple.0.*, z' → z, t_g, t_c, t → text features of [P_g, CLASS],
[P_c, CLASS] and [P_g, P_c, CLASS], π → prior, d_k → a client's label counts, λ → lam. Which prompts there are, and
whether F couples them to the image tower, is the tuner: coupled+class_prompt, or one of its parts (Tables 4, 5).
Departures:
- Eq. 1's denominator runs over the classes for image i; its j is taken for a misprint. τ is 1/CLIP's scale.
- Inference uses the integrated prompt, which Eq. 4 leaves without a loss of its own: its logit-adjusted cross-entropy
  is added (weight la, 1 as released; la=0 is the print). All three terms see the prompted image, z'.
- Comp is clustered by complete linkage, as released: K-means on its rows does not bring complementary clients
  together (diverse=kmeans is the print). Three similarity and four heterogeneity clusters, the best of Fig. 6.
- A cluster's copy stays with its members, and F_k with its client, until the next global aggregation (F_k does not go
  up in between). The last round always aggregates.
- Global aggregation starts from the clusters' means; class-aware rows are averaged, unweighted, over the clients that
  have the class, and stay where nobody does. The released code counts those with over 10% of their samples in it.
- The row mask is on gradients: weight decay and momentum still move the rows of absent classes a little.
- P_g has three rows and P_c one, which starts as the word "a": four in all, as released, where it is 1 + 3 at random.
  Rows of rare classes hardly move from where they start (docs/decisions/0007).
- The bandit's reward is measured on the server's own data, or on a slice that each client holds out; preset=released
  uses the test set, as that code does. One arm is drawn a round; the released code draws four and uses one.
- preset=released: raw prompt vectors in place of text features in L_ge and L_ca, no row mask (its mask comes after the
  step), clients one after the other on one model with one momentum, four clusters of each kind, no aggregation that the
  bandit did not ask for. K-means is seeded in both.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from ..algorithms.bandit import ARMS, Bandit, reward
from ..algorithms.clustering import Labels, cluster_diverse, cluster_similar
from ..algorithms.validation import macro_f1
from ..base.errors import UserError
from ..base.rng import number
from ..core.aggregation import weighted_mean
from ..core.losses import log_prior, task_loss
from ..core.method import Method, resolve
from ..core.model import Model
from ..core.optim import Gradient
from ..core.relay import relay
from ..core.types import GLOBAL, OWN, Batch, Cluster, Each, Me, Params, Reply, Scope, Server

SIMILAR, DIVERSE = Cluster("similar"), Cluster("diverse")
CHAIN = "chain."
Arm = Annotated[int, Field(ge=1)]


class CAPT(Method):
    share = {"general.*": DIVERSE, "text.*": DIVERSE, "class.*": SIMILAR, "couple.*": GLOBAL}  # noqa: RUF012
    neutral = {  # noqa: RUF012
        "ge": 0.0, "lam": 0.0, "la": 1.0, "prior": False, "mask": False, "clustering": False, "bandit": False,
        "floor": -1.0,
    }  # fmt: skip

    ge: float = Field(1.0, ge=0, description="weight of L_ge, Eq. 1")
    lam: float = Field(1.0, ge=0, title="λ", description="weight of L_ca, Eq. 4")
    la: float = Field(1.0, ge=0, description="weight of the integrated prompt's logit-adjusted cross-entropy")
    against: Literal["text", "raw"] = Field("text", description="L_ge, L_ca: text features, or raw prompts (released)")
    tau: float = Field(0.1, gt=0, title="τ", description="temperature with against=raw")
    prior: bool = Field(True, title="π", description="global label proportions in the losses, Eq. 2")
    mask: bool = Field(True, description="only the prompts of classes in the batch get a gradient")
    clustering: bool = Field(True, description="false: every client a cluster of its own (Table 4)")
    metric: Literal["js", "kl", "wasserstein", "tv", "cosine"] = Field("js", description="of similarity (Table 8)")
    similar: Literal["kmeans", "gmm", "hierarchical", "spectral", "dbscan"] = Field("kmeans", description="Table 9")
    diverse: Literal["linkage", "kmeans"] = Field(
        "linkage", description="how complementary clients are brought together"
    )
    n_similar: int = Field(3, ge=1, description="similarity clusters (Fig. 6)")
    n_diverse: int = Field(4, ge=1, description="heterogeneity clusters (Fig. 6)")
    floor: float = Field(0.0, ge=-1, lt=1, description="share of a class above which a client's rows count; -1: FedAvg")
    bandit: bool = Field(True, description="false: global aggregation every `period` rounds (Table 5)")
    period: int = Field(1, ge=1, description="rounds between global aggregations without the bandit")
    arms: tuple[Arm, ...] = Field(ARMS, min_length=1, description="the bandit's: rounds between global aggregations")
    epsilon: float = Field(0.1, ge=0, le=1, title="ε", description="of draws that are blind, Eq. 8")
    bonus: float = Field(2**0.5, ge=0, title="c", description="of arms that were seldom drawn, Eq. 8")
    eta: float = Field(0.1, gt=0, le=1, title="η", description="the bandit's first learning rate, Eq. 7")
    decay: float = Field(0.95, gt=0, le=1, description="of η, a round")
    draws: int = Field(1, ge=1, description="arms drawn a round, of which the last counts; released: 4")
    holdout: float = Field(0.1, gt=0, le=0.5, description="of a client's samples, for the bandit's reward")
    last: bool = Field(True, description="aggregate after the last round, whatever the bandit says")
    sequential: bool = Field(False, description="clients train one after the other on one model, as released")

    def scopes(self, theta: Params) -> dict[str, Scope]:
        return resolve(self.share, theta, idle_too=True)  # a tuner may lack one of the prompts, or the coupling

    def init(self, model: Model, rng: torch.Generator) -> Params:
        theta = model.init(rng)
        if self.against == "raw":
            check_widths(model.clip.shape.embed, model.clip.shape.text_width)
        return theta

    # --- the client ---

    def loss(self, model: Model, theta: Params, batch: Batch, start: Params) -> Tensor:
        bend, z = model.bend(theta), model.image(theta, batch.x, batch.rng)
        log_pi = log_prior(start["counts"]).to(z.device) if self.prior else torch.zeros(model.classes, device=z.device)

        def scores(rows: str) -> Tensor:
            return model.clip.scale * z @ model.text(theta, batch.rng, rows).T

        total = z.new_zeros(())
        if self.ge and bend.shared is not None:
            raw = self.against == "raw"
            total = total + self.ge * (
                raw_general(z, bend.shared, self.tau) if raw else task_loss(scores("shared"), batch)  # Eq. 1
            )
        if self.lam and bend.own is not None:
            s = raw_class_aware(z, bend.own, self.tau) if self.against == "raw" else scores("own")
            total = total + self.lam * task_loss(s + log_pi, batch)  # Eqs. 2, 4
        if self.la:
            total = total + self.la * task_loss(scores("both") + log_pi, batch)
        return total

    def gradient(self, model: Model, start: Params) -> Gradient:
        whole = super().gradient(model, start)

        def gradient(theta: Params, batch: Batch) -> Params:
            found = whole(theta, batch)
            return found | {name: masked(found[name], batch) for name in self.names(theta, SIMILAR) if name in found}

        return gradient if self.mask else whole

    def names(self, theta: Params, scope: Scope) -> list[str]:
        return [name for name, owner in self.scopes(theta).items() if owner == scope]

    def census(self, model: Model, me: Me, theta: Params) -> Reply:
        return Reply({}, stats={"counts": me.data.counts()})

    def train(self, model: Model, me: Me, theta: Params) -> Reply:
        inbox, coupling = me.inbox, self.names(theta, GLOBAL)
        if not self.sequential and me.memory.get("since") == inbox["since"]:  # F_k is still the newest
            theta = theta | {name: me.memory[name].to(theta[name].device) for name in coupling}
        data = me.data.split(self.holdout)[0] if inbox["held"] else me.data
        reply = self.descent(self.gradient(model, {**theta, **inbox}), me, theta, data)
        sent = {n: v for n, v in reply.params.items() if inbox["whole"] or n not in coupling}
        kept = {"since": inbox["since"], **{name: reply.params[name] for name in coupling}}
        stats = {**reply.stats, "counts": me.data.counts()} if "counts" in inbox else reply.stats
        return replace(reply, params=sent, stats=stats, keep=kept)

    def examine(self, model: Model, me: Me, theta: Params) -> Reply:
        """How often each class was right, said and true, on what was not trained on."""
        held = me.data if me.id == OWN else me.data.split(self.holdout)[1]
        y = held.labels
        with torch.no_grad():
            said = torch.cat([me.predict(view.x).argmax(1).cpu() for view in held.views()] or [y])
        tables = {"right": y[said == y], "said": said, "true": y}
        return Reply({}, stats={name: torch.bincount(found, minlength=model.classes) for name, found in tables.items()})

    # --- the server: Algorithm 1 ---

    def round(self, server: Server, cohort: Sequence[int], each: Each) -> Server:
        server, whole, arms = self.schedule(self.counted(server, each))
        mail = {
            "since": server.state["since"],
            "held": torch.tensor(self.bandit and not server.validates),
            "whole": torch.tensor(whole or self.sequential),
        }
        if "counts" in server.state:
            mail["counts"] = server.state["counts"].sum(0)
        server, replies = self.trained(server, cohort, each, dict.fromkeys(cohort, mail))  # Alg. 1, l. 4–6
        server, members = self.clustered(server, replies)  # Alg. 1, l. 7–10
        if whole:
            server = self.united(server, members)  # Alg. 1, l. 12
            server = self.learned(server, arms, each, cohort) if self.bandit else server  # Alg. 1, l. 13
        return server

    def counted(self, server: Server, each: Each) -> Server:
        """The label counts of all clients, asked for once, and again when labels are new; not if nothing needs them.

        Who misses the census keeps its last counts, at first zeros, until it comes to train.
        """
        if not (self.prior or self.clustering or self.floor >= 0):
            return server.remember(since=server.state.get("since", torch.tensor(0)))
        if "counts" in server.state and not server.new_labels:
            return server
        replies = each(self.census, server, range(server.clients))
        if "counts" not in server.state:
            C = len(next(iter(replies.values())).stats["counts"])
            none = torch.zeros(server.clients, C, dtype=torch.int64)
            server = server.remember(counts=none, since=torch.tensor(0))
        return recounted(server, replies)

    def schedule(self, server: Server) -> tuple[Server, bool, list[int]]:
        """Whether this round ends in a global aggregation, and the arms that were drawn."""
        t, final = server.round, self.last and server.round == server.rounds - 1
        if not self.bandit:
            return server, final or t % self.period == 0, []
        rng = random.Random(number(server.seed, "bandit", t))
        arms = [self.learner(server).draw(rng) for _ in range(self.draws)]
        server = server.remember(arms=torch.tensor(arms))
        return server, final or t % arms[-1] == 0, arms

    def learner(self, server: Server) -> Bandit:
        rules = {"arms": self.arms, "epsilon": self.epsilon, "c": self.bonus, "eta": self.eta, "decay": self.decay}
        none = torch.zeros(len(self.arms), dtype=torch.int64)
        return Bandit.from_params({"values": none.double(), "pulls": none, **server.state}, **rules)

    def trained(
        self, server: Server, cohort: Sequence[int], each: Each, mail: Mapping[int, Params]
    ) -> tuple[Server, dict[int, Reply]]:
        if self.sequential:
            chain = {n.removeprefix(CHAIN): v for n, v in server.state.items() if n.startswith(CHAIN)}
            server, replies = relay(self.train, server, cohort, each, mail, chain)
            server = server.remember(**{CHAIN + name: value for name, value in chain.items()})
        else:
            server, replies = self.gather(self.train, server, cohort, each, mail)
        return recounted(server, replies) if "counts" in server.state else server, replies

    def clustered(self, server: Server, replies: Mapping[int, Reply]) -> tuple[Server, dict[int, Reply]]:
        """Cluster the cohort in both ways and average within; also the replies as their clusters now have them."""
        cohort, members = sorted(replies), dict(replies)
        similar: Sequence[int] | Labels = range(len(cohort))  # everyone alone
        diverse = similar
        if self.clustering:
            counts, seed = server.state["counts"][cohort].numpy(), number(server.seed, "clusters", server.round)
            similar = cluster_similar(counts, self.metric, self.similar, self.n_similar, seed)  # Eq. 5
            diverse = cluster_diverse(counts, self.n_diverse, self.diverse, seed)  # Eq. 6
        for scope, labels in ((SIMILAR, similar), (DIVERSE, diverse)):
            names = self.names(server.params, scope)
            groups = {k: int(label) for k, label in zip(cohort, labels, strict=True)}
            means = {
                g: cluster_mean([replies[k].params for k in cohort if groups[k] == g], names) for g in groups.values()
            }
            members = {k: replace(r, params={**r.params, **means[groups[k]]}) for k, r in members.items()}
            server = server.regrouped(scope.cluster, groups, means)
        return server, members

    def united(self, server: Server, members: Mapping[int, Reply]) -> Server:
        """One model for all again; every cluster is dissolved."""
        params = {**server.params, **weighted_mean(members)}
        if self.floor >= 0:
            counts = server.state["counts"][sorted(members)].double()
            shares = counts / counts.sum(1, keepdim=True).clamp_min(1)
            for name in self.names(server.params, SIMILAR):
                rows = torch.stack([members[k].params[name] for k in sorted(members)])
                params[name] = class_rows(server.params[name], rows, shares, self.floor)
        state = {n: v for n, v in server.state.items() if not n.startswith(CHAIN)}
        server = replace(server, params=params, clusters={}, cluster_of={}, state=state)
        return server.remember(since=torch.tensor(server.round + 1))

    def learned(self, server: Server, arms: Sequence[int], each: Each, cohort: Sequence[int]) -> Server:
        """The bandit's lesson from how good the united model is."""
        replies = each(self.examine, server, [OWN] if server.validates else cohort)
        tables = [torch.stack([reply.stats[n] for n in ("right", "said", "true")]) for reply in replies.values()]
        right, said, true = torch.stack(tables).sum(0)
        past = server.state.get("history", torch.empty(0, dtype=torch.float64))
        if not int(true.sum()):
            return server  # this cohort holds too little to have set any aside: no reward was measured, none is learned
        accuracy, f1 = 100 * float(right.sum() / true.sum()), 100 * macro_f1(right, said, true)
        earned = reward(accuracy, f1, past.tolist())
        bandit = self.learner(server)
        for arm in arms:
            bandit = bandit.update(arm, earned, server.round)
        history = torch.cat([past, torch.tensor([accuracy], dtype=torch.float64)])
        return server.remember(**bandit.to_params(), history=history, reward=torch.tensor(earned, dtype=torch.float64))


def recounted(server: Server, replies: Mapping[int, Reply]) -> Server:
    """With the label counts of those who answered."""
    counts = server.state["counts"].clone()
    for k, reply in replies.items():
        counts[k] = reply.stats["counts"]
    return server.remember(counts=counts)


# --- on plain tensors ---


def raw_general(z: Tensor, tokens: Tensor, tau: float) -> Tensor:
    """L_ge as released: image features (B, D) against general prompt vectors (M, D), over the whole batch."""
    s = z @ F.normalize(tokens, dim=-1).T / tau  # (B, M)
    return (s.logsumexp((0, 1)) - s).mean()


def raw_class_aware(z: Tensor, tokens: Tensor, tau: float) -> Tensor:
    """(B, C) scores of L_ca as released: against the mean of each class's normalised prompt vectors (C, M, D)."""
    return z @ F.normalize(tokens, dim=-1).mean(1).T / tau


def check_widths(features: int, tokens: int) -> None:
    if features != tokens:
        raise UserError(
            f"against=raw (preset=released) compares prompts, {tokens} wide, with image features, {features} wide: "
            "it needs a CLIP where they are equally wide; give method.against=text"
        )


def masked(gradient: Tensor, batch: Batch) -> Tensor:
    """(C, M, D) with zeros for classes that the batch does not have."""
    present = torch.zeros(len(gradient), dtype=torch.bool, device=gradient.device)
    present[batch.y] = True
    if batch.candidates is not None:
        present |= (batch.candidates > 0).any(0)
    return gradient * present[:, None, None]


def cluster_mean(members: Sequence[Params], names: Sequence[str]) -> Params:
    """The unweighted mean of a cluster."""
    return {name: torch.stack([params[name] for params in members]).double().mean(0).float() for name in names}


def class_rows(old: Tensor, rows: Tensor, shares: Tensor, floor: float) -> Tensor:
    """(C, M, D): each class's mean over the clients (K, C, M, D) whose share (K, C) of it is above the floor."""
    counts = (shares > floor).to(rows)
    mean = torch.einsum("kc,kcmd->cmd", counts, rows) / counts.sum(0).clamp_min(1)[:, None, None]
    return torch.where((counts.sum(0) > 0)[:, None, None], mean, old)
