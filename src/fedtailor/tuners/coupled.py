"""A text context that also prompts the image tower through a learned projection: shallow in CAPT, deep in MaPLe."""

import torch
from pydantic import Field

from ..base.errors import UserError
from ..clip.model import Clip
from ..clip.vision import EMBEDDED, Prompt
from ..core import Bend, Model, Params, linear, linear_init, normal
from .text_prompt import SharedContext, context_rows


class Coupled(SharedContext):
    acts_on = frozenset({"text", "image"})

    length: int = Field(1, ge=1, title="M", description="context rows, and image tokens made from them")
    depth: int = Field(1, ge=0, title="J", description="layers prompted; 1: CAPT's · 0: ¾ of the smaller tower (MaPLe)")

    def stage(self, clip: Clip) -> str:
        return clip.vision.stages[1]

    def reach(self, clip: Clip) -> int:
        """J, how many layers are prompted; MaPLe's 9 of 12 are three quarters."""
        most = min(len(clip.text.transformer), clip.vision.layers)
        if self.depth > most:
            raise UserError(f"depth={self.depth}: both towers have to have that many layers, the smaller has {most}")
        return self.depth or max(1, 3 * most // 4)

    def init(self, model: Model, rng: torch.Generator) -> Params:
        width, J = model.clip.text.width, self.reach(model.clip)
        theta = {"general.ctx": context_rows(model, self.length, self.words, rng)}
        theta |= {f"general.deep{i}": normal((self.length, width), rng) for i in range(1, J)}
        for i in range(J):
            theta |= linear_init(f"couple.{i}", width, model.clip.vision.prompt_width, rng)
        return theta

    def bend(self, theta: Params, model: Model) -> Bend:
        deep = {i: theta[f"general.deep{i}"] for i in range(1, self.reach(model.clip))}
        rows = [theta["general.ctx"], *deep.values()]
        first, *rest = (linear(theta, f"couple.{i}", row) for i, row in enumerate(rows))
        later = {i: Prompt(token, replace=True) for i, token in enumerate(rest, 1)}
        return Bend(shared=theta["general.ctx"], deep=deep, prompts={EMBEDDED: Prompt(first), **later})
