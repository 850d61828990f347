"""RUCR: features pulled to prototypes that all clients share, then a classifier made anew on balanced mixtures of them.

Huang et al., Federated Learning with Long-Tailed Data via Representation Unification and Classifier Rectification,
IEEE TIFS 2024.
Notation (of the released code): feat_loss_arg → weight, t → tau, crt_ep → crt, crt_feat_num → n, uniform_left and
uniform_right → lam, global unified prototypes → state "prototypes"; the re-trained classifier → rectified.head.*.
Departures, all of them in docs/methods/rucr.md: written from the released code, without the paper's equation numbers;
prototypes come from the round's clients, and the classifier is re-trained on the model just averaged.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from ..core import Batch, Each, LocalTraining, Me, Method, Model, Params, Reply, Server, linear, log_prior, task_loss
from ..core.losses import one_hot
from ..core.optim import Optimiser, gradients
from ..core.statistics import Form, Forms, class_counts

RECTIFIED = "rectified."
Share = Annotated[float, Field(ge=0, le=1)]


class RUCR(Method):
    neutral = {"weight": 0.0, "crt": 0}
    made = ("rectified.*",)

    weight: float = Field(0.15, ge=0, description="of the contrast with the prototypes; 0: none")
    tau: float = Field(0.9, gt=0, title="t", description="temperature of that contrast")
    crt: int = Field(20, ge=0, description="last rounds in which a classifier is re-trained; 0: never")
    n: int = Field(100, ge=1, description="virtual features of each class")
    lam: tuple[Share, Share] = Field((0.35, 0.95), title="λ", description="from, to: the prototype's share in them")
    crt_epochs: int = Field(50, ge=1, description="of re-training, by plain SGD")
    crt_lr: float = Field(0.01, gt=0, description="of re-training")
    crt_batch: int = Field(256, ge=1, description="of re-training")

    @property
    def mixing(self) -> str:
        return "sends sums of its pictures' features" if self.weight or self.crt else ""

    @property
    def singly(self) -> str:
        return "takes the directions of each client's features, and tells each which classes it lacks"

    @property
    def ending(self) -> int:
        return self.crt

    def init(self, model: Model, rng: torch.Generator) -> Params:
        theta = model.init(rng)
        return theta | rectified(theta) if self.crt else theta

    def round(self, server: Server, cohort: Sequence[int], each: Each) -> Server:
        inbox: dict[int, Params] = {}
        if self.weight:
            server, counts = self.unify(server, cohort, each)
            common, prior = server.state["prototypes"], log_prior(torch.stack([*counts.values()]).sum(0))
            inbox = {k: {"prototypes": common * (own > 0)[:, None], "prior": prior} for k, own in counts.items()}
        server = self.aggregate(server, each(self.train, server, cohort, inbox))
        if self.crt == 0:
            return server
        if server.round < server.rounds - self.crt:
            return replace(server, params=server.params | rectified(server.params))
        server, _ = self.unify(server, cohort, each)
        inbox = {k: {"directions": server.state["directions"]} for k in cohort}
        return self.aggregate(server, each(self.rectify, server, cohort, inbox))

    def unify(self, server: Server, cohort: Sequence[int], each: Each) -> tuple[Server, dict[int, Tensor]]:
        """Representation unification: prototypes under the model as it is now, and every client's label counts."""
        replies = each(self.measure, server, cohort)
        stats = [replies[k].stats for k in sorted(replies)]
        return server.remember(**unified(stats, server.state)), {k: r.stats["counts"] for k, r in replies.items()}

    def measure(self, model: Model, me: Me, theta: Params) -> Reply:
        """The sums of features by class, and of how many samples."""
        sums = torch.zeros_like(theta["head.weight"])
        with torch.no_grad():
            for view in me.data.views():
                members = F.one_hot(model.put(me.data.labels[view.index]), model.classes).T.float()  # (C, B)
                sums += members @ model.features(theta, view.x)
        return Reply({}, stats={"sums": sums, "counts": me.data.counts()})

    def train(self, model: Model, me: Me, theta: Params) -> Reply:
        return super().train(model, me, {n: v for n, v in theta.items() if not n.startswith(RECTIFIED)})

    def loss(self, model: Model, theta: Params, batch: Batch, start: Params) -> Tensor:
        if not self.weight:
            return super().loss(model, theta, batch, start)
        f = model.features(theta, batch.x, batch.rng)
        task, prototypes = task_loss(linear(theta, "head", f), batch), model.put(start["prototypes"])
        return task + self.weight * contrast(f, prototypes, model.put(start["prior"]), batch.y, self.tau)

    def rectify(self, model: Model, me: Me, theta: Params) -> Reply:
        """Classifier rectification, on virtual features."""
        if len(me.data) == 0:
            return Reply({})
        with torch.no_grad():
            f = torch.cat([model.features(theta, view.x) for view in me.data.views()])
        x, y = mixed(model.put(me.inbox["directions"]), f, self.n, self.lam, me.rng)
        head = {name: theta[name].clone().requires_grad_() for name in ("head.weight", "head.bias")}
        optimiser = Optimiser(LocalTraining(momentum=0, weight_decay=0), head)
        for _ in range(self.crt_epochs):
            for i in torch.randperm(len(y), generator=me.rng).to(y.device).split(self.crt_batch):
                optimiser.step(gradients(F.cross_entropy(linear(head, "head", x[i]), y[i]), head), self.crt_lr)
        return Reply(rectified(head), weight=len(me.data))

    def statistics(self, name: str, model: Model, theta: Params) -> Forms:
        return {"sums": Form(theta["head.weight"]), "counts": class_counts(model.classes)} if name == "measure" else {}

    def predict_shared(self, model: Model, theta: Params, x: Tensor) -> Tensor:
        """With the re-trained classifier; clients' own models have their own."""
        return linear(theta, RECTIFIED + "head", model.features(theta, x)) if self.crt else model.logits(theta, x)


def rectified(theta: Params) -> Params:
    """The classifier of these parameters as the re-trained one."""
    return {RECTIFIED + name: theta[name].detach().clone() for name in ("head.weight", "head.bias")}


def unified(stats: Sequence[Params], last: Params) -> Params:
    """Of each class the mean feature, and the clients' mean direction, by samples; the last ones if nobody has it."""
    sums, counts = torch.stack([s["sums"] for s in stats]), torch.stack([s["counts"] for s in stats])[:, :, None]
    total, zero = counts.sum(0), torch.zeros_like(sums[0])
    means = {"prototypes": sums.sum(0), "directions": (counts * F.normalize(sums, dim=-1)).sum(0)}
    return {n: torch.where(total > 0, mean / total.clamp_min(1), last.get(n, zero)) for n, mean in means.items()}


def contrast(f: Tensor, prototypes: Tensor, prior: Tensor, y: Tensor, tau: float) -> Tensor:
    """Cross-entropy of cosines to prototypes, zeros for classes the client lacks; a rare label must win by more."""
    cosines = F.normalize(f, dim=1) @ F.normalize(prototypes, dim=1).T  # (B, C)
    return F.cross_entropy(cosines / tau + one_hot(y, len(prior)) * prior, y)


def mixed(directions: Tensor, f: Tensor, n: int, lam: tuple[float, float], rng: torch.Generator) -> tuple[Tensor, ...]:
    """n virtual features of each class that has a prototype: λ of its direction, 1 − λ of any local feature's."""
    y = directions.any(dim=1).nonzero().flatten().repeat_interleave(n)
    share = lam[0] + (lam[1] - lam[0]) * torch.rand(len(y), 1, generator=rng).to(f.device)
    other = torch.randint(len(f), (len(y),), generator=rng).to(f.device)
    return share * directions[y] + (1 - share) * F.normalize(f, dim=1)[other], y
