"""FedCLIP: only an attention gate on CLIP's image features is trained and averaged.

Lu et al., FedCLIP: Fast Generalization and Personalization for CLIP in Federated Learning, IEEE Data Eng. Bull. 2023.
Notation: I → CLIP's image features, A(I) → the tuner adapter, I' = A(I) ⊙ I, T → the class sentences.
Departures: classes compete in the loss and clients weigh by their samples, as CAPT and FedPuReL compare it.
preset=original: pictures compete with their batch's captions (two of the same class are rivals), clients weigh equal.
"""

from typing import Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from ..core import Batch, Method, Model, Params


class FedCLIP(Method):
    against: Literal["classes", "captions"] = Field("classes", description="what a picture is told from, in the loss")
    equal: bool = Field(False, description="clients weigh the same, however many samples they have")

    @property
    def mixing(self) -> str:
        return "compares the pictures of a batch; take method.against=classes" if self.against == "captions" else ""

    def loss(self, model: Model, theta: Params, batch: Batch, start: Params) -> Tensor:
        if self.against == "classes":
            return super().loss(model, theta, batch, start)
        captions = model.text(theta, batch.rng)[batch.y]
        return contrastive(model.clip.scale * model.image(theta, batch.x, batch.rng) @ captions.T)

    @property
    def evenly(self) -> bool:
        return self.equal


def contrastive(logits: Tensor) -> Tensor:
    """CLIP's own loss of a batch of pairs, (B, B): each picture's caption, and each caption's picture."""
    right = torch.arange(len(logits), device=logits.device)
    return (F.cross_entropy(logits, right) + F.cross_entropy(logits.T, right)) / 2
