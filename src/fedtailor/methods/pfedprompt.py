"""pFedPrompt, approximately: a shared text prompt, and a small attention of each client's own on its image features.

Guo, Guo and Wang, pFedPrompt: Learning Personalized Prompt for Vision-Language Models in Federated Learning, WWW 2023.
Notation: the shared prompt → text.ctx, the attention → local.*: p = W_v softmax(W_q norm(z)), logits = scale (cos + p).
Departures: the authors released no code and the paper leaves the attention open. This is the form that another paper's
re-implementation chose, not the authors'; W_v begins at zero, so that a client begins as PromptFL. The attention learns
`pace` times as fast as the prompt. The global model is the shared prompt alone.
"""

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from ..core import GLOBAL, LOCAL, Gradient, Method, Model, Params, branch, linear_init


class PFedPrompt(Method):
    share = {"local.*": LOCAL, "*": GLOBAL}
    everyone_first = True
    by_picture = True

    pace: float = Field(5.0, gt=0, allow_inf_nan=False, description="the attention's learning rate, in units of lr")

    def init(self, model: Model, rng: torch.Generator) -> Params:
        theta, C, D = model.init(rng), model.classes, model.clip.shape.embed  # the prompt first: PromptFL's draw
        own = linear_init("local.query", D, C, rng) | linear_init("local.value", C, C, rng)
        own |= {"local.value.weight": torch.zeros(C, C), "local.value.bias": torch.zeros(C)}
        return {**theta, **own, "local.norm.weight": torch.ones(D), "local.norm.bias": torch.zeros(D)}

    def gradient(self, model: Model, start: Params) -> Gradient:
        plain = super().gradient(model, start)
        return lambda theta, batch: {
            n: self.pace * g if n.startswith("local.") else g for n, g in plain(theta, batch).items()
        }

    def logits(self, model: Model, theta: Params, x: Tensor, rng: torch.Generator | None = None) -> Tensor:
        own = attention(branch(theta, "local."), model.image(theta, x, rng))
        return model.logits(theta, x, rng) + model.clip.scale * own

    def predict_shared(self, model: Model, theta: Params, x: Tensor) -> Tensor:
        return model.logits(theta, x)


def attention(own: Params, z: Tensor) -> Tensor:
    """(B, C) what a client adds to the cosines of images z (B, D)."""
    z = F.layer_norm(z, z.shape[-1:], own["norm.weight"], own["norm.bias"])
    looks = F.linear(z, own["query.weight"], own["query.bias"]).softmax(dim=-1)
    return F.linear(looks, own["value.weight"], own["value.bias"])
