"""FedPGP: a shared prompt, a personal low-rank change of it, and a contrast that keeps the two apart.

Cui et al., Harmonizing Generalization and Personalization in Federated Prompt Learning, ICML 2024.
Notation: p_G → global.text.ctx (σ in the code), U_i, V_i → local.U, local.V, p_i = p_G + U_i V_i, b → rank, μ → mu,
z_C, z_G, z_i → the classes' text features by CLIP's own sentence, by p_G and by p_i, τ → tau.
Departures: z_C is the hand-written sentence, as printed; the released code takes its placeholder "X … X NAME."
(anchor=placeholder). One prompt a client: more would add columns of logits that nobody reads.
"""

from typing import Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from ..base.errors import UserError
from ..core import Batch, Gradient, Model, Params, TwoBranches, branch, normal, task_loss

ANCHOR = "anchor"


class FedPGP(TwoBranches):
    everyone_first = True
    by_picture = True

    rank: int = Field(4, ge=1, title="b", description="of the personal change")
    mu: float = Field(1.0, ge=0, allow_inf_nan=False, title="μ", description="weight of the contrast, Eq. 7")
    tau: float = Field(0.5, gt=0, title="τ", description="temperature of the contrast, Eq. 6")
    anchor: Literal["template", "placeholder"] = Field("template", description="what z_C is the sentence of")

    def init(self, model: Model, rng: torch.Generator) -> Params:
        p_G = model.init(rng)["text.ctx"]
        M, W = p_G.shape
        return {"global.text.ctx": p_G, "local.U": normal((M, self.rank), rng), "local.V": normal((self.rank, W), rng)}

    def gradient(self, model: Model, start: Params) -> Gradient:
        with torch.no_grad():  # z_C is the same in every step
            z_C = model.zero_shot if self.anchor == "template" else model.text({"text.ctx": placeholders(model)})
        return super().gradient(model, {**start, ANCHOR: z_C})

    def loss(self, model: Model, theta: Params, batch: Batch, start: Params) -> Tensor:
        z_i = model.text(personal(theta), batch.rng)
        task = task_loss(model.clip.scale * model.image(personal(theta), batch.x, batch.rng) @ z_i.T, batch)
        z_G = model.text(branch(theta, "global."), batch.rng)
        return task + self.mu * contrast(start[ANCHOR], z_G, z_i, self.tau)  # Eq. 7

    def predict(self, model: Model, theta: Params, x: Tensor) -> Tensor:
        return model.logits(personal(theta), x)


def personal(theta: Params) -> Params:
    return {"text.ctx": theta["global.text.ctx"] + theta["local.U"] @ theta["local.V"]}  # p_i = p_G + U_i V_i


def contrast(z_C: Tensor, z_G: Tensor, z_i: Tensor, tau: float) -> Tensor:
    """Class by class: the shared sentence is to be nearer to CLIP's than to the personal one."""
    pull, push = (z_C * z_G).sum(-1), (z_G * z_i).sum(-1)
    return F.softplus((push - pull) / tau).mean()  # Eq. 6: −ln of the softmax of the two, at the first


def placeholders(model: Model) -> Tensor:
    """The rows of "X X … X", as long as the context."""
    tower, rows = model.clip.text, model.layout.shared
    if model.tokenizer is None:
        raise UserError("anchor=placeholder needs a tokenizer; take anchor=template")
    return tower.token_embedding.weight[torch.tensor(model.tokenizer("X") * rows, device=model.device)]
