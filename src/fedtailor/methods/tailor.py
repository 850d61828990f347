"""Tailor: one model for all, and each client's own class frequencies on top of it. A method of fedtailor's own.

By Bayes, p_k(y|x) ∝ p(x|y) π_k(y): what a class looks like is the same everywhere, how often it occurs is not. The
first takes everyone's pictures to learn, and is averaged as in FedAvg; the second a client can count, and nobody else
need know. A client's model is s(x) + τ ln π_k, with s the shared model's logits; nothing is trained for it or sent, and
who never took part in a round has it too. In training ρ ln π_k is added likewise, so that s need not learn who is
frequent where: a client that lacks a class does not push it down.
Notation: s → logits, ln π_k → own.log_prior, τ → tau, ρ → rho, pseudo-count of a class → alpha.
Departures: none, there is no paper. Adding ln π to logits is logit adjustment (Menon et al., ICLR 2021), here client by
client; what else was tried is in docs/methods/tailor.md.
"""

from collections.abc import Sequence

import torch
from pydantic import Field
from torch import Tensor

from ..core import GLOBAL, LOCAL, Batch, Each, Me, Method, Model, Params, Reply, Server, task_loss

PRIOR = "own.log_prior"


class Tailor(Method):
    share = {PRIOR: LOCAL, "*": GLOBAL}
    class_rows = (PRIOR,)  # 0: as frequent as a client's classes are on average

    tau: float = Field(0.7, ge=0, allow_inf_nan=False, title="τ", description="weight of ln π_k in prediction")
    rho: float = Field(1.0, ge=0, allow_inf_nan=False, title="ρ", description="weight of ln π_k in training; 0: FedAvg")
    alpha: float = Field(0.5, gt=0, allow_inf_nan=False, description="pseudo-count: pictures of each class on top")

    @property
    def mixing(self) -> str:
        return "adds the client's class frequencies to each picture's logits; take method.rho=0" if self.rho else ""

    @property
    def singly(self) -> str:
        return ""  # counts stay with clients

    def init(self, model: Model, rng: torch.Generator) -> Params:
        return {**model.init(rng), PRIOR: torch.zeros(model.classes)}

    def round(self, server: Server, cohort: Sequence[int], each: Each) -> Server:
        if server.round == 0 or server.new_labels:
            each(self.count, server, server.members)
        return super().round(server, cohort, each)

    def count(self, model: Model, me: Me, theta: Params) -> Reply:
        """ln π_k, up to a constant. It stays with the client."""
        counts = me.data.counts().double() + self.alpha
        return Reply({PRIOR: (counts / counts.mean()).log().float()})

    def train(self, model: Model, me: Me, theta: Params) -> Reply:
        """It counts once more: it may have missed that round, or its pictures are others now."""
        return super().train(model, me, {**theta, **self.count(model, me, theta).params})

    def loss(self, model: Model, theta: Params, batch: Batch, start: Params) -> Tensor:
        s = self.logits(model, theta, batch.x, batch.rng)
        return task_loss(s + self.rho * start[PRIOR], batch)  # `start`: counted, not learned

    def predict(self, model: Model, theta: Params, x: Tensor) -> Tensor:
        return self.logits(model, theta, x) + self.tau * theta[PRIOR]

    def predict_shared(self, model: Model, theta: Params, x: Tensor) -> Tensor:
        return self.logits(model, theta, x)
