"""A tuner: how a Params dict bends a frozen CLIP.

It replaces no module and flips no flag. It says which learned rows the class sentences contain (`plan`), where it
enters the image tower (`stage`), what its parameters are at first (`init`), and what they do (`bend`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from pydantic import BaseModel, ConfigDict
from torch import Tensor

from ..clip.block import Deltas
from ..clip.model import Clip
from ..clip.vision import Prompts

if TYPE_CHECKING:
    from ..core import Params
    from ..model import Model


@dataclass(frozen=True)
class Plan:
    """The learned rows in a class's sentence: [SOS][shared][own][before][name][.][EOT]."""

    shared: int = 0
    own: int = 0
    before: tuple[int, ...] = ()  # frozen tokens between the learned rows and the name
    position: str = "end"  # of the name


@dataclass(frozen=True)
class Bend:
    """Everything a tuner can do to CLIP, as values."""

    shared: Tensor | None = None  # (M, W) context rows of all classes
    own: Tensor | None = None  # (C, M, W) context rows of each class
    deep: Mapping[int, Tensor] = field(default_factory=dict)  # layer → rows that overwrite the shared ones there
    text_deltas: Deltas = field(default_factory=dict)
    prompts: Prompts = field(default_factory=dict)  # tokens for the image tower
    image_deltas: Deltas = field(default_factory=dict)
    gates: tuple[Callable[[Tensor], Tensor], ...] = ()  # on image features
    for_image: Callable[[Tensor], Tensor] | None = None  # (B, D) images → (B, M, W) context rows, other for each
    net: Callable[[Tensor, torch.Generator | None], Tensor] | None = None  # pixels → features, in place of CLIP's tower
    head: Callable[[Tensor], Tensor] | None = None  # features → logits, in place of the class sentences

    @property
    def leaves_text(self) -> bool:
        return self.shared is None and self.own is None and not self.deep and not self.text_deltas


class Tuner(BaseModel, ABC):
    model_config = ConfigDict(frozen=True, extra="forbid")

    @abstractmethod
    def touches(self) -> frozenset[str]:
        """Of "text", "image" (the towers), "features" (of the latter) and "classifier" (for the class sentences)."""

    def stage(self, clip: Clip) -> str:
        """The last stage of the image tower that this tuner leaves alone."""
        return "features"

    def plan(self, model: Model) -> Plan:
        return Plan()

    @abstractmethod
    def init(self, model: Model, rng: torch.Generator) -> Params: ...

    @abstractmethod
    def bend(self, theta: Params, model: Model) -> Bend: ...


def normal(shape: tuple[int, ...], rng: torch.Generator, std: float = 0.02) -> Tensor:
    return torch.randn(shape, generator=rng) * std
