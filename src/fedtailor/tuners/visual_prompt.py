"""Learned tokens in the image tower (VPT): at its beginning, or anew at every layer."""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field

from ..base.errors import UserError
from ..clip.model import Clip
from ..clip.vision import EMBEDDED, Prompt
from ..core import Bend, Model, Params, Tuner, normal


class VisualPrompt(Tuner):
    acts_on = frozenset({"image"})

    length: int = Field(4, ge=1, le=1024, title="M", description="tokens at a layer")
    depth: int = Field(1, ge=0, title="J", description="layers prompted; 0: all but the last")
    first: int = Field(0, ge=0, description="the first prompted layer; what lies below it is cached")
    mode: Literal["kept", "dropped", "replaced"] = Field(
        "kept",
        description="kept: appended once and carried on (depth 1) · dropped: appended and dropped at each layer "
        "(FedCoPL) · replaced: appended at the first, overwritten at each later one (MaPLe)",
    )
    resnet: Literal["refused", "kept"] = Field(
        "refused", description="what a ResNet, which has one place for a prompt, makes of more: an error, or one, kept"
    )

    def on(self, clip: Clip) -> VisualPrompt:
        """These settings; on a ResNet those of a single prompt, where that is allowed."""
        single = self.resnet == "kept" and not clip.vision.later_prompts
        return self.model_copy(update={"first": 0, "depth": 1, "mode": "kept"}) if single else self

    def note(self, clip: Clip) -> str:
        if self.on(clip) == self:
            return ""
        instead = f"one visual prompt of {self.length} rows, its mean added to the last feature map"
        return f"{clip.vision.kind} has no layers for visual prompts (a ViT has); used instead: {instead}"

    def layers(self, clip: Clip) -> range:
        it, tower = self.on(clip), clip.vision
        if not tower.later_prompts and (it.mode != "kept" or it.depth != 1 or it.first):
            todo = "take a ViT, or first=0 depth=1 mode=kept, or resnet=kept, which does that and says so"
            raise UserError(f"{tower.kind} has no layers for visual prompts, only one place before its end; {todo}")
        depth = it.depth or tower.layers - 1 - it.first
        if not 1 <= depth <= tower.layers - it.first:
            raise UserError(f"depth={it.depth} from layer {it.first}: the image tower has {tower.layers} layers")
        if it.mode == "kept" and depth > 1:
            raise UserError("mode=kept carries one set of tokens through the tower: depth=1, or mode=dropped|replaced")
        return range(it.first, it.first + depth)

    def stage(self, clip: Clip) -> str:
        return clip.vision.stages[1 + self.layers(clip)[0]]

    def init(self, model: Model, rng: torch.Generator) -> Params:
        layers = self.layers(model.clip)
        return {"visual.ctx": normal((len(layers), self.length, model.clip.vision.prompt_width), rng)}

    def bend(self, theta: Params, model: Model) -> Bend:
        it, rows = self.on(model.clip), theta["visual.ctx"]
        if it.mode == "dropped":
            return Bend(prompts={it.first + i: Prompt(row, keep=False) for i, row in enumerate(rows)})
        # Tokens that stay enter before ln_pre where that is still ahead, as CLIP's own tokens do.
        begin = EMBEDDED if it.first == 0 else it.first
        later = {it.first + i: Prompt(row, replace=True) for i, row in enumerate(rows) if i > 0}
        return Bend(prompts={begin: Prompt(rows[0]), **later})
