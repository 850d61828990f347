"""CoCoOp's context: M rows for all classes, and a small network that moves them differently for each image."""

import torch
from pydantic import Field
from torch import Tensor

from ..core import Bend, Model, Params, linear, linear_init
from .text_prompt import SharedContext, context_rows


class MetaPrompt(SharedContext):
    hidden: int = Field(0, ge=0, le=65536, description="width inside the meta-net; 0: a sixteenth of the features'")

    def init(self, model: Model, rng: torch.Generator) -> Params:
        D, W = model.clip.shape.embed, model.clip.text.width
        hidden = self.hidden or max(1, D // 16)
        rows = {"text.ctx": context_rows(model, self.length, self.words, rng)}
        return rows | linear_init("meta.in", D, hidden, rng) | linear_init("meta.out", hidden, W, rng)

    def bend(self, theta: Params, model: Model) -> Bend:
        return Bend(shared=theta["text.ctx"], for_image=lambda z: theta["text.ctx"] + shift(theta, z))


def shift(theta: Params, z: Tensor) -> Tensor:
    """π = h(z), (B, 1, W): what normalised image features (B, D) add to every row of the context."""
    return linear(theta, "meta.out", linear(theta, "meta.in", z).relu()).unsqueeze(1)
