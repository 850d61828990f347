"""Low-rank deltas on the attention matrices (CLIP-LoRA): W + α/√r · B A."""

from typing import Literal

import torch
from pydantic import Field, field_validator

from ..base.errors import UserError
from ..clip.block import LowRank
from ..clip.model import Clip
from ..core import Bend, Model, Params, Tuner


class Lora(Tuner):
    rank: int = Field(2, ge=1, le=4096, title="r")
    alpha: float = Field(1.0, gt=0, title="α", description="the delta is scaled by α/√r")
    dropout: float = Field(0.25, ge=0, lt=1, description="on a delta's input, in training")
    towers: Literal["both", "image", "text"] = "both"
    matrices: str = Field("qkv", description="which of q, k, v, o")
    first: int = Field(0, ge=0, description="the first layer with deltas; the image tower below it is cached")

    @field_validator("matrices")
    @classmethod
    def known(cls, matrices: str) -> str:
        if not matrices or set(matrices) - set("qkvo") or len(set(matrices)) != len(matrices):
            raise ValueError(f"{matrices!r}: some of the letters q, k, v, o, each once")
        return matrices

    def touches(self) -> frozenset[str]:
        return frozenset({"text", "image"} if self.towers == "both" else {self.towers})

    def stage(self, clip: Clip) -> str:
        return clip.vision.stages[1 + self.first] if self.towers != "text" else "features"

    def init(self, model: Model, rng: torch.Generator) -> Params:
        text, vision = model.clip.text, model.clip.vision
        sizes = {"text": ("text", len(text.transformer), text.width), "image": ("visual", vision.layers, vision.width)}
        allowed = vision.delta_matrices
        if self.towers != "text" and set(self.matrices) - set(allowed):
            letters = f"{', '.join(allowed[:-1])} and {allowed[-1]}"
            raise UserError(f"{vision.kind} takes deltas on {letters} only: matrices={allowed}")
        theta: Params = {}
        for touched in sorted(self.touches()):
            tower, depth, width = sizes[touched]
            if self.first >= depth:
                raise UserError(f"first={self.first}: the {touched} tower has {depth} layers")
            for layer in range(self.first, depth):
                for matrix in self.matrices:
                    name = f"{tower}.block{layer}.{matrix}"
                    # A begins as torch's Linear weights do (Kaiming, a = √5), B at zero: no change at first.
                    theta[f"{name}.A"] = (torch.rand(self.rank, width, generator=rng) * 2 - 1) * width**-0.5
                    theta[f"{name}.B"] = torch.zeros(width, self.rank)
        return theta

    def bend(self, theta: Params, model: Model) -> Bend:
        deltas: dict[str, dict[tuple[int, str], LowRank]] = {"text": {}, "visual": {}}
        scale = self.alpha / self.rank**0.5
        for name, A in theta.items():
            if name.endswith(".A"):
                tower, block, matrix, _ = name.split(".")
                B = theta[f"{tower}.{block}.{matrix}.B"]
                deltas[tower][int(block.removeprefix("block")), matrix] = LowRank(A, B, scale, self.dropout)
        return Bend(text_deltas=deltas["text"], image_deltas=deltas["visual"])
