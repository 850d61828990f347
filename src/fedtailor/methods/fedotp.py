"""FedOTP (FedOPT): a global and a local prompt share out a picture's patches by optimal transport.

Li, Huang, Wang and Shi, Global and Local Prompts Cooperation via Optimal Transport for Federated Learning, CVPR 2024.
Notation: V → M (patches), T* → T, C → 1 − sim, γ → gamma, the entropic weight → eps.
Departures, all of them in docs/methods/fedotp.md: a transport problem stops by its own |Δv|, not by its batch's mean,
and is solved in logarithms and doubles; what is shared alone is the global prompt with all of γ.
"""

import torch
from pydantic import Field
from torch import Tensor

from ..algorithms import optimal_transport
from ..core import Model, Params, TwoBranches, branch


class FedOTP(TwoBranches):
    reads = "patches"
    iterates = True
    everyone_first = True
    by_picture = True

    eps: float = Field(0.1, ge=1e-3, description="weight of the plan's entropy: the smaller, the sharper")
    gamma: float = Field(0.8, gt=0, le=1, title="γ", description="how much of a picture the prompts take, together")
    iterations: int = Field(100, ge=1, description="of a transport problem, at most")
    tolerance: float = Field(1e-3, ge=0, description="mean |Δv| at which a transport problem is solved")

    def predict_shared(self, model: Model, theta: Params, x: Tensor) -> Tensor:
        return self.logits(model, {n: v for n, v in theta.items() if n.startswith("global.")}, x)

    def logits(self, model: Model, theta: Params, x: Tensor, rng: torch.Generator | None = None) -> Tensor:
        """(B, C): what the prompts' sentences find in the patches that the plan gives them."""
        prompts = [own for prefix in ("global.", "local.") if (own := branch(theta, prefix))]
        texts = torch.stack([model.text(prompt, rng) for prompt in prompts])  # (N, C, D)
        sim = torch.einsum("bmd,ncd->bcmn", model.patches(prompts[0], x, rng), texts)
        return model.clip.scale * (self.plan(1 - sim) * sim).sum((-2, -1))

    def plan(self, cost: Tensor) -> Tensor:
        """(B, C, M, N), a constant in the gradient: a patch gives at most 1/M, a prompt gets γ/N."""
        M, N = cost.shape[-2:]
        rows, columns = cost.new_full((M,), 1 / M), cost.new_full((N,), self.gamma / N)
        return optimal_transport.plan(cost, rows, columns, self.eps, self.iterations, self.tolerance)
