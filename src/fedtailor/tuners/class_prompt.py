"""A context of its own for every class (CoOp's CSC; CAPT's class-aware prompts)."""

from typing import Literal

import torch
from pydantic import Field

from ..core import Bend, Context, Model, Params, Tuner, normal
from .text_prompt import context_rows


class ClassPrompt(Tuner):
    acts_on = frozenset({"text"})

    length: int = Field(4, ge=1, title="M", description="context rows of each class")
    position: Literal["end", "middle", "front"] = Field("end", description="where the class name stands")
    words: str = Field("", description="every class starts as these words. Empty: N(0, 0.02²)")
    alike: bool = Field(False, description="without words: all classes start as the same draw")

    def context(self, model: Model) -> Context:
        return Context(own=self.length, position=self.position)

    def class_rows(self) -> tuple[str, ...]:
        return ("*class.ctx",)

    def init(self, model: Model, rng: torch.Generator) -> Params:
        if self.words or self.alike:
            return {"class.ctx": context_rows(model, self.length, self.words, rng).repeat(model.classes, 1, 1)}
        return {"class.ctx": normal((model.classes, self.length, model.clip.text.width), rng)}

    def bend(self, theta: Params, model: Model) -> Bend:
        return Bend(own=theta["class.ctx"])
