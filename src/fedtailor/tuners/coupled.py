"""A text context that also prompts the image tower through a learned projection: shallow in CAPT, deep in MaPLe."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from pydantic import Field

from ..base.errors import UserError
from ..clip.model import Clip
from ..clip.vision import EMBEDDED, Prompt
from ..core.bend import Bend, Context
from ..core.initial import linear_init, normal
from ..core.model import Model, Tuner
from ..core.types import Params
from .text_prompt import context, frozen_words


class Coupled(Tuner):
    length: int = Field(1, ge=1, title="M", description="context rows, and image tokens made from them")
    depth: int = Field(1, ge=0, title="J", description="layers prompted; 1: CAPT's · 0: ¾ of the smaller tower (MaPLe)")
    words: str = Field("", description="start as these words; those beyond M stay frozen. Empty: N(0, 0.02²)")

    def touches(self) -> frozenset[str]:
        return frozenset({"text", "image"})

    def stage(self, clip: Clip) -> str:
        return clip.vision.stages[1]

    def reach(self, clip: Clip) -> int:
        """J, how many layers are prompted; MaPLe's 9 of 12 are three quarters."""
        most = min(len(clip.text.transformer), clip.vision.layers)
        if self.depth > most:
            raise UserError(f"depth={self.depth}: both towers have to have that many layers, the smaller has {most}")
        return self.depth or max(1, 3 * most // 4)

    def plan(self, model: Model) -> Context:
        return Context(shared=self.length, before=frozen_words(model, self.words, self.length))

    def init(self, model: Model, rng: torch.Generator) -> Params:
        text, vision, J = model.clip.text, model.clip.vision, self.reach(model.clip)
        theta = {"general.ctx": context(model, self.length, self.words, rng)}
        theta |= {f"general.deep{i}": normal((self.length, text.width), rng) for i in range(1, J)}
        for i in range(J):
            theta |= linear_init(f"couple.{i}", text.width, vision.prompt_width, rng)
        return theta

    def bend(self, theta: Params, model: Model) -> Bend:
        deep = {i: theta[f"general.deep{i}"] for i in range(1, self.reach(model.clip))}
        rows = [theta["general.ctx"], *deep.values()]
        visual = [F.linear(r, theta[f"couple.{i}.weight"], theta[f"couple.{i}.bias"]) for i, r in enumerate(rows)]
        later = {i: Prompt(token, replace=True) for i, token in enumerate(visual) if i > 0}
        return Bend(shared=theta["general.ctx"], deep=deep, prompts={EMBEDDED: Prompt(visual[0]), **later})
