"""CoCoOp's context: M rows for all classes, and a small network that moves them, other for each image."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from ..core.bend import Bend, Context
from ..core.initial import linear_init
from ..core.model import Model, Tuner
from ..core.types import Params
from .text_prompt import context, frozen_words


class MetaPrompt(Tuner):
    length: int = Field(4, ge=1, title="M", description="context rows shared by all classes")
    words: str = Field("", description="start as these words; those beyond M stay frozen. Empty: N(0, 0.02²)")
    hidden: int = Field(0, ge=0, description="width inside the meta-net; 0: a sixteenth of the features'")

    def touches(self) -> frozenset[str]:
        return frozenset({"text"})

    def plan(self, model: Model) -> Context:
        return Context(shared=self.length, before=frozen_words(model, self.words, self.length))

    def init(self, model: Model, rng: torch.Generator) -> Params:
        D, W = model.clip.shape.embed, model.clip.text.width
        hidden = self.hidden or max(1, D // 16)
        ctx = {"text.ctx": context(model, self.length, self.words, rng)}
        return ctx | linear_init("meta.in", D, hidden, rng) | linear_init("meta.out", hidden, W, rng)

    def bend(self, theta: Params, model: Model) -> Bend:
        return Bend(shared=theta["text.ctx"], for_image=lambda z: theta["text.ctx"] + shift(theta, z))


def shift(theta: Params, z: Tensor) -> Tensor:
    """π = h(z), (B, 1, W): what normalised image features (B, D) add to every row of the context."""
    hidden = F.linear(z, theta["meta.in.weight"], theta["meta.in.bias"]).relu()
    return F.linear(hidden, theta["meta.out.weight"], theta["meta.out.bias"]).unsqueeze(1)
