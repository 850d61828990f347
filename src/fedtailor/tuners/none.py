"""No tuner: CLIP as it is."""

import torch

from ..core import Bend, Model, Params, Tuner


class Untuned(Tuner):
    def init(self, model: Model, rng: torch.Generator) -> Params:
        return {}

    def bend(self, theta: Params, model: Model) -> Bend:
        return Bend()
