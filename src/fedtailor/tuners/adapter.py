"""FedCLIP's attention gate on image features: I' = softmax(W₂ tanh(W₁ I)) ⊙ I."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from ..core import Bend, Model, Params, Tuner, linear_init


@dataclass(frozen=True, eq=False)
class AttentionGate:
    """Its two layers, W₁ and W₂, as values: whoever writes the model down elsewhere has to see them."""

    weight_in: Tensor
    bias_in: Tensor
    weight_out: Tensor
    bias_out: Tensor

    def __call__(self, features: Tensor) -> Tensor:
        hidden = torch.tanh(F.linear(features, self.weight_in, self.bias_in))
        return F.linear(hidden, self.weight_out, self.bias_out).softmax(dim=1) * features


class Adapter(Tuner):
    acts_on = frozenset({"features"})

    hidden: int = Field(0, ge=0, le=65536, description="width between the two layers; 0: that of the features")

    def init(self, model: Model, rng: torch.Generator) -> Params:
        D = model.clip.shape.embed
        hidden = self.hidden or D
        return {**linear_init("adapter.in", D, hidden, rng), **linear_init("adapter.out", hidden, D, rng)}

    def bend(self, theta: Params, model: Model) -> Bend:
        layers = (theta[f"adapter.{layer}.{part}"] for layer in ("in", "out") for part in ("weight", "bias"))
        return Bend(gates=(AttentionGate(*layers),))
