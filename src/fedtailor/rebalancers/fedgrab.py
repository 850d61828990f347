"""Fed-GraB: for each class, a controller that keeps the gradients for and against it in balance.

Xiao et al., Fed-GraB: Federated Long-tailed Learning with Self-Adjusting Gradient Balancer, NeurIPS 2023.
Notation: K_P, K_I, K_D → Kp, Ki, Kd; Δ → pos − neg, the summed sizes of the gradients for and against a class;
m, from a controller's output to a weight → mapped. All state is the client's own, and stays with it.
Departures, all of them in docs/methods/fedgrab.md: the loss is cross-entropy (loss=bce: the paper's), the analyser that
finds the tail is not released (tail; other classes have no controller), and as released, some classes go free at random
in each step (release).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from ..core import Balance, Batch, Params, Rebalancer
from ..core.losses import one_hot, plain_loss

STATE = ("rebalance.pos", "rebalance.neg", "rebalance.out", "rebalance.e1", "rebalance.e2")  # what a client keeps


class FedGraB(Rebalancer):
    Kp: float = Field(10.0, ge=0, allow_inf_nan=False, title="K_P", description="on the change of the imbalance")
    Ki: float = Field(0.01, ge=0, allow_inf_nan=False, title="K_I", description="on the imbalance itself")
    Kd: float = Field(0.1, ge=0, allow_inf_nan=False, title="K_D", description="on the change of its change")
    most: float = Field(10.0, gt=1, allow_inf_nan=False, description="the largest weight of a gradient")
    loss: Literal["ce", "bce"] = Field("ce", description="bce: a yes or no for each class, as in the paper")
    tail: Literal["all", "below-mean"] = Field("all", description="classes with a controller: all, or a client's rarer")
    release: bool = Field(True, description="let some classes go unweighted at random, the first of them always")

    def begin(self, memory: Params, counts: Tensor, rng: torch.Generator) -> Controllers:
        counts = counts.to("cpu", torch.float64)
        tail = torch.ones_like(counts, dtype=torch.bool) if self.tail == "all" else counts < counts.mean()
        return Controllers(self, tail, rng, *(memory.get(name, torch.zeros_like(counts)) for name in STATE))

    def increment(self, e: Tensor, e1: Tensor, e2: Tensor) -> Tensor:
        """By which a controller's output changes; the error now, a step ago and two steps ago."""
        return self.Kp * (e - e1) + self.Ki * e + self.Kd * (e - 2 * e1 + e2)

    def task(self, logits: Tensor, batch: Batch) -> Tensor:
        if self.loss == "ce":
            return plain_loss(logits, batch)
        return F.binary_cross_entropy_with_logits(logits, targets(logits, batch), reduction="sum") / len(logits)


@dataclass
class Controllers(Balance):
    """One for each class, (C,), on the CPU. Each call of `loss` is a step of theirs, also if a method has several
    of one batch. Only a loss that is differentiated counts for the next step's balance."""

    settings: FedGraB
    tail: Tensor  # which classes have a controller
    rng: torch.Generator
    pos: Tensor  # Σ |gradient| on a class's logit, over the pictures that are of it
    neg: Tensor  # the same over all others
    out: Tensor
    e1: Tensor  # the error at the last step
    e2: Tensor  # the one before

    def loss(self, logits: Tensor, batch: Batch) -> Tensor:
        if not logits.requires_grad:
            return self.settings.task(logits, batch)
        (pos_w, neg_w), free = self.step(), ~self.tail
        if self.settings.release:
            free |= released(self.tail, torch.rand(len(free), generator=self.rng, dtype=torch.float64))
        positive = targets(logits, batch) > 0
        pos_w, neg_w = (w.masked_fill(free, 1.0).to(logits) for w in (pos_w, neg_w))
        seen = logits.view_as(logits)  # what else is computed from these logits keeps its gradient
        seen.register_hook(partial(self.reweigh, torch.where(positive, pos_w, neg_w), positive, free))
        return self.settings.task(seen, batch)

    def step(self) -> tuple[Tensor, Tensor]:
        """Weights of the gradients for and against each class, from what was seen until now."""
        e = self.neg - self.pos  # −Δ: the controllers pull Δ to 0
        self.out = self.out + self.settings.increment(e, self.e1, self.e2)
        self.e1, self.e2 = e, self.e1
        return mapped(self.out, self.settings.most), mapped(-self.out, self.settings.most)

    def reweigh(self, weight: Tensor, positive: Tensor, free: Tensor, gradient: Tensor) -> Tensor:
        """The gradient that is followed; its size is added up, but for classes that went free."""
        followed = gradient * weight
        size = followed.detach().abs().float()
        self.pos = self.pos + (size * positive).sum(0).cpu().masked_fill(free, 0.0)
        self.neg = self.neg + (size * ~positive).sum(0).cpu().masked_fill(free, 0.0)
        return followed

    def keep(self) -> Params:
        return {name: getattr(self, name.removeprefix("rebalance.")).clone() for name in STATE}


def mapped(x: Tensor, most: float) -> Tensor:
    """From 0 over m(0) = 1 to `most`. With most = 10 it is (10/9) / (1/9 + exp(−x/2))."""
    return most / (1 + (most - 1) * torch.exp(-x / 2))


def released(tail: Tensor, draws: Tensor) -> Tensor:
    """(C,) which of n tail classes go free, by index, for a uniform draw each: after i of them the next does with a
    probability of 0.1^(i / (n − 1)), so that the first always does."""
    last, u = max(int(tail.sum()) - 1, 1), draws.tolist()
    free: list[int] = []
    for c in tail.nonzero().flatten().tolist():
        if u[c] < 0.1 ** (len(free) / last):
            free.append(c)
    return torch.zeros_like(tail).index_fill(0, torch.tensor(free, dtype=torch.int64), True)


def targets(logits: Tensor, batch: Batch) -> Tensor:
    """(B, C) weights of the labels: a single 1, or a picture's candidates."""
    return (one_hot(batch.y, logits.shape[1]) if batch.candidates is None else batch.candidates).to(logits)
