"""FedPuReL: gradients purified against zero-shot CLIP, then a personal residual on top of the shared model.

Hou et al., Fine-Tuning Impairs the Balancedness of Foundation Models in Long-tailed Personalized Federated Learning.
Notation: φ_g → global.*, φ_k → local.*, z → z (zero-shot logits), f → f, l_G and l_P → l_G and l_P, λ → lam,
τ_zs and τ_ft → temperatures, T → rounds, T_p → T_p.
Departures:
- T_p is not given in print; it is 40 epochs, about as many personal passes as a client makes in the released code.
  They are one closing round, which costs each client one visit.
- A gradient is projected tensor by tensor, as released; scope=joint takes φ_g as one, as the paper's notation does.
- λ is 0.9 as published; preset=released has 0.99, the interleaved schedule (a personal pass in every round) and, with
  adapters, plain distillation in place of D_TKL and the fused loss alone.
- preset=released carries momentum on from client to client in the shared phase (local.carry), as that code does.
- A zero alignment gradient leaves the task gradient as it is (the released code gets there by way of a NaN).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from ..algorithms.alignment import alignment
from ..core.losses import task_loss
from ..core.method import Method, branch, resolve, two_branches
from ..core.model import Model
from ..core.optim import Gradient, LocalTraining, gradient_of, optimise
from ..core.types import GLOBAL, LOCAL, Batch, Each, Me, Params, Reply, Scope, Server


class FedPuReL(Method):
    share = {"global.*": GLOBAL, "local.*": LOCAL}  # noqa: RUF012  # ClassVars of the base
    neutral = {"projection": 0.0, "T_p": 0}  # noqa: RUF012
    teacher = True

    lam: float = Field(0.9, ge=0, le=1, title="λ", description="weight of the personal branch alone, Alg. 1, l. 27")
    projection: float = Field(1.0, ge=0, description="how much of a conflicting component is taken out; 0: nothing")
    scope: Literal["tensor", "joint"] = Field("tensor", description="what is projected at once")
    align: Literal["tkl", "kl", "distil"] = Field("tkl", description="distance to zero-shot CLIP (Table 6)")
    schedule: Literal["two-phase", "interleaved"] = Field(
        "two-phase", description="personal passes: after T, or always"
    )
    T_p: int = Field(40, ge=0, description="two-phase: personal epochs after the last round; 0: no personal part")
    personal_lr: float = Field(1e-3, gt=0, description="of plain SGD in the personal passes")

    @property
    def closing(self) -> int:
        return int(self.schedule == "two-phase" and self.T_p > 0)

    def scopes(self, theta: Params) -> dict[str, Scope]:
        return resolve(self.share, theta, idle_too=True)  # a pass trains one branch alone

    def init(self, model: Model, rng: torch.Generator) -> Params:
        return two_branches(model, rng)

    def cohort(self, t: int, clients: int, fraction: float, rng: torch.Generator) -> list[int]:
        if self.schedule == "interleaved" and t == 0:
            return list(range(clients))  # so that each has a personal part
        return super().cohort(t, clients, fraction, rng)

    def round(self, server: Server, cohort: Sequence[int], each: Each) -> Server:
        server = self.aggregate(*self.gather(self.train, server, cohort, each))  # Alg. 1, l. 5–19
        if self.schedule == "interleaved":
            each(self.personalise, server, cohort)
        return server

    def close(self, server: Server, cohort: Sequence[int], each: Each) -> Server:
        """Who misses it has no personal part: φ_g alone is its model."""
        each(self.personalise, server, cohort)  # Alg. 1, l. 23–30
        return server

    # --- phase 1: purified gradients ---

    def train(self, model: Model, me: Me, theta: Params) -> Reply:
        shared = {name: value for name, value in theta.items() if name.startswith("global.")}
        return self.descent(self.gradient(model, theta), me, shared, me.data)

    def gradient(self, model: Model, start: Params) -> Gradient:
        def gradient(theta: Params, batch: Batch) -> Params:
            f = model.logits(branch(theta, "global."), batch.x, batch.rng)
            distance = alignment(self.align, model.teacher(batch), f)
            g_align = gradients(distance, theta, retain_graph=True)  # Alg. 1, l. 8
            g_task = gradients(task_loss(f, batch), theta)  # Alg. 1, l. 9
            return purified(g_task, g_align, self.projection, joint=self.scope == "joint")

        return gradient

    # --- phase 2: a personal residual ---

    def personalise(self, model: Model, me: Me, theta: Params) -> Reply:
        fixed, model = branch(theta, "global."), model.remembering()
        with torch.no_grad():  # φ_g is frozen: its logits are computed once, unless pictures change from time to time
            once = [model.logits(fixed, view.x) for view in me.data.views()] if me.data.fixed else []

        def loss(own: Params, batch: Batch) -> Tensor:
            with torch.no_grad():
                l_G = l_shared[batch.index] if me.data.fixed else model.logits(fixed, batch.x)
            l_P = tuned.logits(branch(own, "local."), batch.x, batch.rng)
            return residual_loss(l_G, l_P, batch, self.lam)  # Alg. 1, l. 27

        l_shared, tuned = torch.cat(once) if once else torch.empty(0), replace(model, memo=None)
        mine = {name: value for name, value in theta.items() if name.startswith("local.")}
        epochs = self.T_p if self.schedule == "two-phase" else self.local.epochs
        plain = LocalTraining(
            epochs=epochs, batch=self.local.batch, lr=self.personal_lr, momentum=0, weight_decay=0,
            drop_last=self.local.drop_last,
        )  # fmt: skip
        return Reply(optimise(gradient_of(loss), mine, me.data, plain, me.round, me.rng), weight=len(me.data))

    def predict(self, model: Model, theta: Params, x: Tensor) -> Tensor:
        l_G, l_P = self.branches(model, theta, x)
        return l_G + l_P

    def branches(self, model: Model, theta: Params, x: Tensor) -> tuple[Tensor, Tensor]:
        return model.logits(branch(theta, "global."), x), model.logits(branch(theta, "local."), x)

    def predict_shared(self, model: Model, theta: Params, x: Tensor) -> Tensor:
        return model.logits(branch(theta, "global."), x)


def gradients(loss: Tensor, theta: Params, retain_graph: bool = False) -> Params:
    names = [name for name, value in theta.items() if value.requires_grad]
    found = torch.autograd.grad(loss, [theta[n] for n in names], retain_graph=retain_graph, allow_unused=True)
    return {name: g for name, g in zip(names, found, strict=True) if g is not None}


def purified(task: Params, align: Params, strength: float = 1.0, joint: bool = False) -> Params:
    """The task gradient without its component against the alignment gradient, where the two conflict."""
    dots = {name: float((g * align[name]).sum()) if name in align else 0.0 for name, g in task.items()}
    squares = {name: float(align[name].square().sum()) if name in align else 0.0 for name in task}
    if joint:
        dots, squares = dict.fromkeys(dots, sum(dots.values())), dict.fromkeys(squares, sum(squares.values()))
    return {
        name: g - strength * dots[name] / squares[name] * align[name]  # Alg. 1, l. 12
        if dots[name] < 0 and name in align
        else g
        for name, g in task.items()
    }


def residual_loss(l_G: Tensor, l_P: Tensor, batch: Batch, lam: float) -> Tensor:
    """(1−λ) CE(l_G + l_P) + λ CE(l_P)."""
    return (1 - lam) * task_loss(l_G + l_P, batch) + lam * task_loss(l_P, batch)
