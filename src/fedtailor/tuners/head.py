"""A linear classifier on CLIP's image features in place of the class sentences (a linear probe)."""

from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from ..core import Bend, Model, Params, Tuner, linear


@dataclass(frozen=True, eq=False)
class Scaled:
    scale: Tensor

    def __call__(self, features: Tensor) -> Tensor:
        return self.scale * F.normalize(features, dim=-1)


class Head(Tuner):
    """It reads features of length CLIP's scale, so that rows equal to the text features are zero-shot CLIP."""

    acts_on = frozenset({"classifier"})

    start: Literal["zero", "text"] = Field("zero", description="text: the rows begin as the class sentences' features")

    def class_rows(self) -> tuple[str, ...]:
        return ("head.*",) if self.start == "text" else ()

    def init(self, model: Model, rng: torch.Generator) -> Params:
        rows = model.zero_shot.cpu().clone() if self.start == "text" else torch.zeros(model.zero_shot.shape)
        return {"head.weight": rows, "head.bias": torch.zeros(model.classes)}

    def bend(self, theta: Params, model: Model) -> Bend:
        return Bend(gates=(Scaled(model.clip.scale),), head=partial(linear, theta, "head"))
