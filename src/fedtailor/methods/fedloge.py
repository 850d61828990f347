"""FedLoGe: a network trained through a fixed sparse frame, a shared and a personal head beside it, realigned by norms.

Xiao et al., FedLoGe: Joint Local and Generic Federated Learning under Long-tailed Data, ICLR 2024.
Notation: SSE-C → etf.weight, auxiliary global head → head.*, local head → local.*, sparsity → beta.
Departures:
- A class is absent if the client has no training picture of it; the released code looks into the client's test set.
- The frame: each row has the same share of zeros and exactly its length, where the released code zeroes entries of the
  whole matrix and pulls lengths by a penalty. 500 steps come within half a degree of the angles that its 10 000
  smaller ones reach. The frame has no bias (released: a random one that nobody trains).
- The frame's rows have length 1, in the released code 0.1: through such a short frame the features of a narrow network
  grow until heads beside it, which learn at the same rate, diverge.
- A personal head starts as the shared one does, at random in the released code; all clients are in round 0, so that
  each has one.
As released: realignment is done when predicting, biases are not realigned, and the personal realignment takes the
shared head as it is, not as realigned for the shared model.
"""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from ..algorithms.simplex_frame import sparse_etf
from ..core.losses import task_loss
from ..core.method import Method
from ..core.model import Model
from ..core.types import FIXED, GLOBAL, LOCAL, Batch, Me, Params, Reply

NEVER = -1e10  # the logit of a class that a client does not have


class FedLoGe(Method):
    share = {"etf.*": FIXED, "local.*": LOCAL, "*": GLOBAL}  # noqa: RUF012  # ClassVars of the base
    everyone_first = True

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
        seen = f.detach()
        return (
            task_loss(F.linear(f, start["etf.weight"]), batch)
            + task_loss(F.linear(seen, theta["head.weight"], theta["head.bias"]), batch)
            + task_loss(F.linear(seen, theta["local.weight"], theta["local.bias"]), batch)
        )

    def train(self, model: Model, me: Me, theta: Params) -> Reply:
        reply = super().train(model, me, theta)
        present = model.put((me.data.counts() > 0).float())
        return replace(reply, params={**reply.params, "local.present": present})

    def predict_shared(self, model: Model, theta: Params, x: Tensor) -> Tensor:
        rows = self.norm * F.normalize(theta["head.weight"], dim=1)  # global realignment
        return F.linear(model.features(theta, x), rows, theta["head.bias"])

    def predict(self, model: Model, theta: Params, x: Tensor) -> Tensor:
        l_G, l_P = self.branches(model, theta, x)
        return (l_G + l_P).masked_fill(theta["local.present"] == 0, NEVER)

    def branches(self, model: Model, theta: Params, x: Tensor) -> tuple[Tensor, Tensor]:
        f, lengths = model.features(theta, x), theta["local.weight"].norm(dim=1, keepdim=True)
        l_G = F.linear(f, theta["head.weight"] * lengths, theta["head.bias"])  # personal realignment
        return l_G, F.linear(f, theta["local.weight"], theta["local.bias"])
