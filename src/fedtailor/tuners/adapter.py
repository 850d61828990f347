"""FedCLIP's attention gate on image features: I' = softmax(W₂ tanh(W₁ I)) ⊙ I."""

import torch
from pydantic import Field
from torch import Tensor

from ..core import Bend, Model, Params, Tuner, linear, linear_init


class Adapter(Tuner):
    acts_on = frozenset({"features"})

    hidden: int = Field(0, ge=0, description="width between the two layers; 0: that of the features")

    def init(self, model: Model, rng: torch.Generator) -> Params:
        D = model.clip.shape.embed
        hidden = self.hidden or D
        return {**linear_init("adapter.in", D, hidden, rng), **linear_init("adapter.out", hidden, D, rng)}

    def bend(self, theta: Params, model: Model) -> Bend:
        def gate(features: Tensor) -> Tensor:
            hidden = torch.tanh(linear(theta, "adapter.in", features))
            return linear(theta, "adapter.out", hidden).softmax(dim=1) * features

        return Bend(gates=(gate,))
