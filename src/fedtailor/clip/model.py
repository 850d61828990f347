"""A frozen CLIP: two towers and a scale. Tuners bend it from outside; nothing here is ever trained or replaced."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from .text import TextTower
from .vision import ImageTower, ModifiedResNet, VisionTransformer


@dataclass(frozen=True)
class Shape:
    """All that is needed to build the towers. `vision_layers` is a number for a ViT, four depths for a ResNet."""

    embed: int
    image_size: int
    patch: int  # 0 for a ResNet
    vision_width: int
    vision_layers: int | tuple[int, ...]
    vision_heads: int
    context: int
    vocab: int
    text_width: int
    text_layers: int
    text_heads: int
    act: str = "quick_gelu"  # or "gelu"


class Clip(nn.Module):
    logit_scale: nn.Parameter  # ln of the factor, as CLIP stores it

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = s = shape
        if isinstance(s.vision_layers, int):
            self.vision: ImageTower = VisionTransformer(
                s.embed, s.image_size, s.patch, s.vision_width, s.vision_layers, s.vision_heads, s.act
            )
        else:
            self.vision = ModifiedResNet(s.embed, s.image_size, s.vision_width, s.vision_layers, s.vision_heads)
        self.text = TextTower(s.embed, s.context, s.vocab, s.text_width, s.text_layers, s.text_heads, s.act)
        self.logit_scale = nn.Parameter(torch.tensor(math.log(1 / 0.07)))

    def freeze(self) -> Clip:
        return self.requires_grad_(False).eval()

    @property
    def scale(self) -> Tensor:
        return self.logit_scale.exp()
