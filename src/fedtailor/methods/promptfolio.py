"""PromptFolio: every client mixes a global and a local prompt, as one mixes assets of a portfolio.

Pan, Huang and Shi, Federated Learning from Vision-Language Foundation Models: Theoretical Analysis and Method,
NeurIPS 2024.
Notation: p_G → global.*, p_L → local.*, θ → theta_mix.
Departures: at θ = 0 the local prompt, which nothing reads then, is not computed and so has no weight decay.
As released, the two unit vectors are mixed as they are and the mixture is not normalised again. Since logits are linear
in it, mixing sentences is mixing logits. The global model is p_G alone (θ = 0).
"""

import torch
from pydantic import Field
from torch import Tensor

from ..core import Model, Params, TwoBranches, branch


class PromptFolio(TwoBranches):
    neutral = {"theta_mix": 0.0}
    everyone_first = True
    by_picture = True

    theta_mix: float = Field(0.4, ge=0, le=1, title="θ", description="weight of the local prompt")

    def logits(self, model: Model, theta: Params, x: Tensor, rng: torch.Generator | None = None) -> Tensor:
        l_G = model.logits(branch(theta, "global."), x, rng)
        if self.theta_mix == 0:
            return l_G
        return (1 - self.theta_mix) * l_G + self.theta_mix * model.logits(branch(theta, "local."), x, rng)
