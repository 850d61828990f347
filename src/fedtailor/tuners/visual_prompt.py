"""Learned tokens in the image tower (VPT): at its beginning, or anew at every layer."""

from typing import Literal

import torch
from pydantic import Field

from ..base.errors import UserError
from ..clip.model import Clip
from ..clip.vision import EMBEDDED, Prompt
from ..core import Bend, Model, Params, Tuner, normal


class VisualPrompt(Tuner):
    acts_on = frozenset({"image"})

    length: int = Field(4, ge=1, title="M", description="tokens at a layer")
    depth: int = Field(1, ge=0, title="J", description="layers prompted; 0: all but the last")
    first: int = Field(0, ge=0, description="the first prompted layer; what lies below it is cached")
    mode: Literal["kept", "dropped", "replaced"] = Field(
        "kept",
        description="kept: appended once and carried on (depth 1) · dropped: appended and dropped at each layer "
        "(FedCoPL) · replaced: appended at the first, overwritten at each later one (MaPLe)",
    )

    def layers(self, clip: Clip) -> range:
        tower = clip.vision
        depth = self.depth or tower.layers - 1 - self.first
        if not 1 <= depth <= tower.layers - self.first:
            raise UserError(f"depth={self.depth} from layer {self.first}: the image tower has {tower.layers} layers")
        if self.mode == "kept" and depth > 1:
            raise UserError("mode=kept carries one set of tokens through the tower: depth=1, or mode=dropped|replaced")
        if self.mode != "kept" and not tower.later_prompts:
            raise UserError(f"{tower.kind} has one place for a prompt: first=0 and mode=kept")
        return range(self.first, self.first + depth)

    def stage(self, clip: Clip) -> str:
        self.layers(clip)
        return clip.vision.stages[1 + self.first]

    def init(self, model: Model, rng: torch.Generator) -> Params:
        layers = self.layers(model.clip)
        return {"visual.ctx": normal((len(layers), self.length, model.clip.vision.prompt_width), rng)}

    def bend(self, theta: Params, model: Model) -> Bend:
        rows = theta["visual.ctx"]
        if self.mode == "dropped":
            return Bend(prompts={self.first + i: Prompt(row, keep=False) for i, row in enumerate(rows)})
        # Tokens that stay enter before ln_pre where that is still ahead, as CLIP's own tokens do.
        begin = EMBEDDED if self.first == 0 else self.first
        later = {self.first + i: Prompt(row, replace=True) for i, row in enumerate(rows) if i > 0}
        return Bend(prompts={begin: Prompt(rows[0]), **later})
