"""FedCLIP's attention gate on image features: I' = softmax(W₂ tanh(W₁ I)) ⊙ I."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from ..core.bend import Bend
from ..core.initial import linear_init
from ..core.model import Model, Tuner
from ..core.types import Params


class Adapter(Tuner):
    hidden: int = Field(0, ge=0, description="width between the two layers; 0: that of the features")

    def touches(self) -> frozenset[str]:
        return frozenset({"features"})

    def init(self, model: Model, rng: torch.Generator) -> Params:
        D = model.clip.shape.embed
        hidden = self.hidden or D
        return {**linear_init("adapter.in", D, hidden, rng), **linear_init("adapter.out", hidden, D, rng)}

    def bend(self, theta: Params, model: Model) -> Bend:
        def gate(features: Tensor) -> Tensor:
            hidden = torch.tanh(F.linear(features, theta["adapter.in.weight"], theta["adapter.in.bias"]))
            weights = F.linear(hidden, theta["adapter.out.weight"], theta["adapter.out.bias"]).softmax(dim=1)
            return weights * features

        return Bend(gates=(gate,))
