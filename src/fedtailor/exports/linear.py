"""Whether a prediction is one matrix on an image tower's features, and which: found by asking the method itself.

What comes out of a method is a function of features if its model is given features for pictures. Were it
W z + b for z = f / |f|, then its values at ±1 along each axis would tell W and b. They are computed from those, and
tried on other features. So a method need not say what form its prediction has, and cannot say it wrongly.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, is_dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..base.rng import generator
from ..clip.block import Deltas, Rng
from ..clip.merge import merged
from ..clip.model import Clip
from ..clip.vision import Prompts
from ..core.bend import Bend
from ..core.model import Model
from ..core.types import Params
from .base import CannotExpress, difference
from .source import Source, turned_into

CLOSE = 1e-4
NETWORK = "a network of its own stands in place of CLIP's image tower"
PATCHES = "it looks at every patch of a picture, not at the picture's features alone"
FOR_EACH = "every picture has class sentences of its own, so that there is no one classifier matrix"
SEVERAL = "it adds up the answers of several image towers, each tuned in its own way"
CROOKED = "its logits are not a matrix times the picture's features"


@dataclass(frozen=True)
class Probe(Model):
    """Takes features for pictures, those behind some of the tuner's gates, and notes what would have made them."""

    gates: int = 0
    images: list[Bend] = field(default_factory=list)
    texts_by: list[Deltas] = field(default_factory=list)  # of the text tower

    def features(self, theta: Params, x: Tensor, rng: Rng = None) -> Tensor:
        bend = self.bend(theta)
        if bend.net is not None:
            raise CannotExpress(NETWORK)
        self.images.append(bend)
        for gate in bend.gates[self.gates :]:
            x = gate(x)
        return x

    def patches(self, theta: Params, x: Tensor, rng: Rng = None) -> Tensor:
        raise CannotExpress(PATCHES)

    def cosines(self, bend: Bend, rows: Callable[[Tensor], Tensor], z: Tensor, rng: Rng = None) -> Tensor:
        raise CannotExpress(FOR_EACH)

    def texts(self, theta: Params, sets: Any, rng: Rng = None) -> dict[str, Tensor]:
        self.texts_by.append(self.bend(theta).text_deltas)
        return super().texts(theta, sets, rng)


Gates = tuple[Callable[[Tensor], Tensor], ...]


@dataclass(frozen=True)
class Linear:
    """logits = weight · z + bias, with z the normalised features of one image tower behind these gates."""

    weight: Tensor  # (C, D), CLIP's scale in it
    bias: Tensor  # (C,)
    prompts: Prompts
    image_deltas: Deltas
    gates: Gates
    text_deltas: tuple[Deltas, ...]  # of the text towers that made the rows, if their weights are changed at all

    def clip(self, clip: Clip) -> Clip:
        """With its deltas in the weights; those of the text tower, if there is one such tower."""
        return merged(clip, self.image_deltas, self.text_deltas[0] if len(self.text_deltas) == 1 else {})


def linear_form(source: Source) -> Linear:
    """As few gates as will do stay in front: a head's own scaling is part of the matrix, an adapter is not."""
    gates, memo = 0, source.model.memo
    while True:
        probe = turned_into(Probe, source.model, gates=gates, memo=memo)
        weight, bias, off = solved(partial(source.logits, model=probe), probe.clip.shape.embed)
        first, *others = probe.images
        if not all(alike(path(first, gates), path(other, gates)) for other in others):
            raise CannotExpress(SEVERAL)
        if off < CLOSE:
            break
        if gates == len(first.gates):
            raise CannotExpress(CROOKED)
        gates += 1
    texts: list[Deltas] = []
    for deltas in filter(None, probe.texts_by):
        texts += [] if any(alike(deltas, known) for known in texts) else [deltas]
    return Linear(weight, bias, first.prompts, first.image_deltas, first.gates[:gates], tuple(texts))


def solved(logits: Callable[[Tensor], Tensor], D: int) -> tuple[Tensor, Tensor, float]:
    """The W (C, D) and b (C,) that it has if it is of that form, and how far it is from them elsewhere."""
    axes = torch.eye(D)
    up, down = logits(axes).double(), logits(-axes).double()
    weight, bias = ((up - down) / 2).T, ((up + down) / 2).mean(0)
    rng = generator(0, "export", "features")
    f = torch.randn(32, D, generator=rng) * torch.logspace(-1, 1.5, 32)[:, None]  # short ones, and long ones
    off = difference(F.normalize(f.double(), dim=-1) @ weight.T + bias, logits(f))
    return weight.float().contiguous(), bias.float(), off


def path(bend: Bend, gates: int) -> tuple[object, ...]:
    return dict(bend.prompts), dict(bend.image_deltas), bend.gates[:gates]


def alike(one: object, other: object) -> bool:
    """Whether two nests of tensors are the same, number by number."""
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return torch.equal(one, other)
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(alike(one[key], other[key]) for key in one)
    if is_dataclass(one) and type(one) is type(other):
        return alike(vars(one), vars(other))
    if isinstance(one, tuple) and type(one) is type(other):
        return len(one) == len(other) and all(map(alike, one, other))
    return one is other or (isinstance(one, bool | int | float | str) and one == other)


def one_clip(source: Source, library: str) -> Linear:
    """For formats that hold CLIP's weights and nothing beside them."""
    found = linear_form(source)
    if found.prompts:
        raise CannotExpress(f"{library} has no place for learned tokens in the image tower")
    if found.gates:
        raise CannotExpress(f"{library} has no place for an adapter on image features")
    if len(found.text_deltas) > 1:
        raise CannotExpress("its class sentences come from several text towers, each tuned in its own way")
    return found
