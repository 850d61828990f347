"""A context of its own for every class (CoOp's CSC; CAPT's class-aware prompts)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import torch
from pydantic import Field

from .base import Bend, Plan, Tuner, normal

if TYPE_CHECKING:
    from ..core import Params
    from ..model import Model


class ClassPrompt(Tuner):
    length: int = Field(4, ge=1, title="M", description="context rows of each class")
    position: Literal["end", "middle", "front"] = Field("end", description="where the class name stands")

    alike: bool = Field(False, description="all classes begin with the same rows; false: each with its own draw")

    def touches(self) -> frozenset[str]:
        return frozenset({"text"})

    def plan(self, model: Model) -> Plan:
        return Plan(own=self.length, position=self.position)

    def init(self, model: Model, rng: torch.Generator) -> Params:
        C, rows = model.classes, (self.length, model.clip.text.width)
        return {"class.ctx": normal(rows, rng).repeat(C, 1, 1) if self.alike else normal((C, *rows), rng)}

    def bend(self, theta: Params) -> Bend:
        return Bend(own=theta["class.ctx"])
