"""FedLoGe: a network trained through a fixed sparse frame, a shared and a personal head beside it, realigned by norms.

Xiao et al., FedLoGe: Joint Local and Generic Federated Learning under Long-tailed Data, ICLR 2024.
Notation: SSE-C → etf.weight, auxiliary global head → head.*, local head → local.*, sparsity → beta.
Departures, all of them in docs/methods/fedloge.md: a class is absent if the client has no training picture of it, the
frame's rows are equally sparse and of length 1, and a personal head starts as the shared one does.
"""

from dataclasses import replace

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from ..algorithms.simplex_frame import sparse_etf
from ..core import FIXED, GLOBAL, LOCAL, Batch, Me, Method, Model, Params, Reply, linear, task_loss

NEVER = -1e10  # the logit of a class that a client does not have


class FedLoGe(Method):
    share = {"etf.*": FIXED, "local.*": LOCAL, "*": GLOBAL}
    everyone_first = True
    by_picture = True

    beta: float = Field(0.6, ge=0, lt=1, title="β", description="share of the frame's entries that are zero")
    length: float = Field(1.0, gt=0, allow_inf_nan=False, description="of a class's row in the frame")
    steps: int = Field(500, ge=0, description="of Adam, which widen the sparse frame's angles")
    norm: float = Field(1.7, gt=0, allow_inf_nan=False, description="of the shared head's rows, realigned")

    def init(self, model: Model, rng: torch.Generator) -> Params:
        theta = model.init(rng)
        C, D = theta["head.weight"].shape
        own = {"local.weight": theta["head.weight"].clone(), "local.bias": theta["head.bias"].clone()}
        frame = sparse_etf(C, D, self.beta, self.length, self.steps, rng)
        return {**theta, **own, "local.present": torch.ones(C), "etf.weight": frame}

    def loss(self, model: Model, theta: Params, batch: Batch, start: Params) -> Tensor:
        """The network learns from the frame alone, each head from what the network makes of the pictures."""
        f = model.features(theta, batch.x, batch.rng)
        heads = linear(start, "etf", f), linear(theta, "head", f.detach()), linear(theta, "local", f.detach())
        frame, shared, own = (task_loss(logits, batch) for logits in heads)
        return frame + shared + own

    def train(self, model: Model, me: Me, theta: Params) -> Reply:
        reply = super().train(model, me, theta)
        return replace(reply, params={**reply.params, "local.present": model.put((me.data.counts() > 0).float())})

    def predict_shared(self, model: Model, theta: Params, x: Tensor) -> Tensor:
        rows = self.norm * F.normalize(theta["head.weight"], dim=1)  # global realignment
        return F.linear(model.features(theta, x), rows, theta["head.bias"])

    def predict(self, model: Model, theta: Params, x: Tensor) -> Tensor:
        l_G, l_P = self.branches(model, theta, x)
        return (l_G + l_P).masked_fill(theta["local.present"] == 0, NEVER)

    def branches(self, model: Model, theta: Params, x: Tensor) -> tuple[Tensor, Tensor]:
        f, lengths = model.features(theta, x), theta["local.weight"].norm(dim=1, keepdim=True)
        l_G = F.linear(f, theta["head.weight"] * lengths, theta["head.bias"])  # personal realignment
        return l_G, linear(theta, "local", f)
