"""No tuner: CLIP as it is."""

from __future__ import annotations

import torch

from ..core.bend import Bend
from ..core.model import Model, Tuner
from ..core.types import Params


class Untuned(Tuner):
    def touches(self) -> frozenset[str]:
        return frozenset()

    def init(self, model: Model, rng: torch.Generator) -> Params:
        return {}

    def bend(self, theta: Params, model: Model) -> Bend:
        return Bend()
