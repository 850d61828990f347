"""FedPuReL: gradients purified against zero-shot CLIP, then a personal residual on top of the shared model.

Hou et al., Fine-Tuning Impairs the Balancedness of Foundation Models in Long-tailed Personalized Federated Learning.
Notation: φ_g → global.*, φ_k → local.*, z → z (zero-shot logits), f → f, l_G and l_P → l_G and l_P, λ → lam,
τ_zs and τ_ft → temperatures, T → rounds, T_p → T_p.
Departures, all of them in docs/methods/fedpurel.md: T_p is not given in print and is 40 epochs, in one closing round;
a gradient is projected tensor by tensor (scope=joint: φ_g as one, as the paper's notation has it).
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from ..algorithms.alignment import alignment
from ..core import Batch, Each, Gradient, LocalTraining, Me, Model, Params, Reply, Server, TwoBranches, branch
from ..core.losses import task_loss
from ..core.optim import gradient_of, gradients, optimise


class FedPuReL(TwoBranches):
    neutral = {"projection": 0.0, "T_p": 0}
    teacher = True

    lam: float = Field(0.9, ge=0, le=1, title="λ", description="weight of the personal branch alone, Alg. 1, l. 27")
    projection: float = Field(1.0, ge=0, description="how much of a conflicting component is taken out; 0: nothing")
    scope: Literal["tensor", "joint"] = Field("tensor", description="what is projected at once")
    align: Literal["tkl", "kl", "distil"] = Field(
        "tkl", description="distance to zero-shot CLIP (Table 6); distil is kl plus a constant: the same gradient"
    )
    T_p: int = Field(40, ge=0, description="personal epochs after the last round; 0: no personal part")
    personal_lr: float = Field(1e-3, gt=0, description="of plain SGD in the personal passes")

    @property
    def mixing(self) -> str:
        return "projects the gradient of a whole batch"

    @property
    def singly(self) -> str:
        return ""  # from a personal pass nothing is read

    @property
    def closing(self) -> int:
        return int(self.T_p > 0)

    def train(self, model: Model, me: Me, theta: Params) -> Reply:
        """Phase 1: purified gradients (Alg. 1, l. 5–19)."""
        shared = {name: value for name, value in theta.items() if name.startswith("global.")}
        return self.local_update(self.gradient(model, theta), me, shared, me.data)

    def gradient(self, model: Model, start: Params) -> Gradient:
        def gradient(theta: Params, batch: Batch) -> Params:
            f = model.logits(branch(theta, "global."), batch.x, batch.rng)
            distance = alignment(self.align, model.teacher(batch), f)
            g_align = gradients(distance, theta, retain_graph=True)  # Alg. 1, l. 8
            g_task = gradients(task_loss(f, batch), theta)  # Alg. 1, l. 9
            return purified(g_task, g_align, self.projection, joint=self.scope == "joint")

        return gradient

    def close(self, server: Server, cohort: Sequence[int], each: Each) -> Server:
        """Phase 2: a personal residual. Who misses it has no personal part: φ_g alone is its model."""
        each(self.personalise, server, cohort)  # Alg. 1, l. 23–30
        return server

    def personalise(self, model: Model, me: Me, theta: Params) -> Reply:
        fixed, model = branch(theta, "global."), model.remembering()
        with torch.no_grad():  # φ_g is frozen: its logits are computed once, unless pictures are augmented
            once = [model.logits(fixed, view.x) for view in me.data.views()] if me.data.fixed else []

        def loss(own: Params, batch: Batch) -> Tensor:
            with torch.no_grad():
                l_G = l_shared[batch.index] if me.data.fixed else model.logits(fixed, batch.x)
            l_P = tuned.logits(branch(own, "local."), batch.x, batch.rng)
            return residual_loss(l_G, l_P, batch, self.lam)  # Alg. 1, l. 27

        l_shared, tuned = torch.cat(once) if once else torch.empty(0), replace(model, memo=None)
        mine = {name: value for name, value in theta.items() if name.startswith("local.")}
        epochs = self.T_p if self.closing else self.local.epochs
        same = {"epochs": epochs, "batch": self.local.batch, "drop_last": self.local.drop_last}
        plain = LocalTraining(**same, lr=self.personal_lr, momentum=0, weight_decay=0)
        return Reply(optimise(gradient_of(loss), mine, me.data, plain, me.round, me.rng), weight=len(me.data))

    def predict(self, model: Model, theta: Params, x: Tensor) -> Tensor:
        l_G, l_P = self.branches(model, theta, x)
        return l_G + l_P

    def branches(self, model: Model, theta: Params, x: Tensor) -> tuple[Tensor, Tensor]:
        return model.logits(branch(theta, "global."), x), model.logits(branch(theta, "local."), x)


def purified(task: Params, align: Params, strength: float = 1.0, joint: bool = False) -> Params:
    """The task gradient without its component against the alignment gradient, where the two conflict."""
    both = [name for name in task if name in align]
    dots, squares = ({n: (a[n] * align[n]).sum() for n in both} for a in (task, align))
    if joint and both:
        dots, squares = (dict.fromkeys(both, torch.stack(list(sums.values())).sum()) for sums in (dots, squares))
    # Without a look at the numbers, for which a GPU would have to be waited for: nothing is taken where none conflict.
    share = {n: torch.where(dots[n] < 0, strength * dots[n] / squares[n], 0.0) for n in both}
    return task | {n: task[n] - share[n] * align[n] for n in both}  # Alg. 1, l. 12


def residual_loss(l_G: Tensor, l_P: Tensor, batch: Batch, lam: float) -> Tensor:
    """(1−λ) CE(l_G + l_P) + λ CE(l_P)."""
    return (1 - lam) * task_loss(l_G + l_P, batch) + lam * task_loss(l_P, batch)
