"""No tuner: CLIP as it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from .base import Bend, Tuner

if TYPE_CHECKING:
    from ..core import Params
    from ..model import Model


class Untuned(Tuner):
    def touches(self) -> frozenset[str]:
        return frozenset()

    def init(self, model: Model, rng: torch.Generator) -> Params:
        return {}

    def bend(self, theta: Params, model: Model) -> Bend:
        return Bend()
