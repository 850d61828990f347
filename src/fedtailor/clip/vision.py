"""CLIP's image towers, with explicit places where a tuner may enter and where a cache may cut.

A tower is a line of named stages. `tower(x, start, stop)` runs it between any two: `("pixels", "block3")` is what the
cache computes once for a tuner whose first prompt enters at layer 3, `("block3", "features")` what training repeats.

    ViT      pixels · embedded · block1 · … · block{n−1} · features | patches
    ResNet   pixels · map · features | patches

`features` is the read-out (B, D); `patches` is every token projected, (B, 1 + L, D), the read-out first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .block import NO_DELTAS, Deltas, Transformer, attend, linear

EMBEDDED = -1  # the prompt layer before ln_pre; for a ResNet, the feature map before its attention pool


@dataclass(frozen=True)
class Prompt:
    """Learned tokens that enter at one layer's input."""

    tokens: Tensor  # (M, W)
    replace: bool = False  # overwrite the last M tokens instead of being appended
    keep: bool = True  # stay in the sequence behind that layer


Prompts = Mapping[int, Prompt]
NO_PROMPTS: Prompts = {}


class ImageTower(Protocol):
    stages: tuple[str, ...]
    prompt_width: int
    width: int  # of the attention matrices that low-rank deltas fit
    layers: int

    def __call__(
        self,
        x: Tensor,
        start: str = "pixels",
        stop: str = "features",
        prompts: Prompts = ...,
        deltas: Deltas = ...,
        rng: torch.Generator | None = None,
    ) -> Tensor: ...


class VisionTransformer(nn.Module):
    def __init__(self, embed: int, image_size: int, patch: int, width: int, layers: int, heads: int, act: str) -> None:
        super().__init__()
        self.layers, self.prompt_width, self.width = layers, width, width
        self.stages = ("pixels", "embedded", *(f"block{i}" for i in range(1, layers)), "features", "patches")
        self.conv1 = nn.Conv2d(3, width, patch, stride=patch, bias=False)
        self.class_embedding = nn.Parameter(width**-0.5 * torch.randn(width))
        self.positional_embedding = nn.Parameter(width**-0.5 * torch.randn((image_size // patch) ** 2 + 1, width))
        self.ln_pre = nn.LayerNorm(width)
        self.transformer = Transformer(width, layers, heads, act)
        self.ln_post = nn.LayerNorm(width)
        self.proj = nn.Parameter(width**-0.5 * torch.randn(width, embed))

    def embed(self, pixels: Tensor) -> Tensor:
        patches = self.conv1(pixels).flatten(2).transpose(1, 2)
        cls = self.class_embedding.to(patches.dtype).expand(len(pixels), 1, -1)
        return torch.cat([cls, patches], dim=1) + self.positional_embedding

    def forward(
        self,
        x: Tensor,
        start: str = "pixels",
        stop: str = "features",
        prompts: Prompts = NO_PROMPTS,
        deltas: Deltas = NO_DELTAS,
        rng: torch.Generator | None = None,
    ) -> Tensor:
        begin, end = (self.stages.index(stage) for stage in (start, stop))
        if begin == end:
            return x
        if begin == 0:
            x = self.embed(x)
        if end == 1:
            return x
        if begin <= 1:
            x = self.ln_pre(enter(x, prompts.get(EMBEDDED)))
        first, after = max(begin - 1, 0), min(end - 1, self.layers)
        for layer in range(first, after):
            prompt = prompts.get(layer)
            x = enter(x, prompt)
            block = self.transformer[layer]
            if layer == self.layers - 1 and stop == "features":
                return self.leave(block.first(x, layer, deltas, rng))
            x = leave(block(x, layer, None, deltas, rng), prompt)
        return self.leave(x) if stop == "patches" else x

    def leave(self, x: Tensor) -> Tensor:
        normed: Tensor = self.ln_post(x)
        return normed @ self.proj


def enter(x: Tensor, prompt: Prompt | None) -> Tensor:
    if prompt is None:
        return x
    rows = prompt.tokens.to(x.dtype).expand(len(x), -1, -1)
    return torch.cat([x[:, : -rows.shape[1]] if prompt.replace else x, rows], dim=1)


def leave(x: Tensor, prompt: Prompt | None) -> Tensor:
    return x if prompt is None or prompt.keep else x[:, : -prompt.tokens.shape[-2]]


class Bottleneck(nn.Module):
    """ResNet bottleneck whose stride is an average pool, as CLIP's."""

    def __init__(self, inside: int, width: int, stride: int) -> None:
        super().__init__()
        self.stride = stride
        self.conv1, self.bn1 = nn.Conv2d(inside, width, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
        self.conv3, self.bn3 = nn.Conv2d(width, 4 * width, 1, bias=False), nn.BatchNorm2d(4 * width)
        self.downsample: nn.Sequential | None = None
        if stride > 1 or inside != 4 * width:
            parts = (("0", nn.Conv2d(inside, 4 * width, 1, bias=False)), ("1", nn.BatchNorm2d(4 * width)))
            self.downsample = nn.Sequential(OrderedDict(parts))

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))))
        out = self.bn3(self.conv3(self.pool(out)))
        aside = x if self.downsample is None else self.downsample(self.pool(x))
        return F.relu(out + aside)

    def pool(self, x: Tensor) -> Tensor:
        return F.avg_pool2d(x, self.stride) if self.stride > 1 else x


class AttentionPool(nn.Module):
    def __init__(self, side: int, width: int, heads: int, embed: int) -> None:
        super().__init__()
        self.heads = heads
        self.positional_embedding = nn.Parameter(torch.randn(side**2 + 1, width) / width**0.5)
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(width, width) for _ in range(3))
        self.c_proj = nn.Linear(width, embed)

    def forward(self, x: Tensor, all_tokens: bool, deltas: Deltas, rng: torch.Generator | None) -> Tensor:
        tokens = x.flatten(2).transpose(1, 2)  # (B, L, W)
        tokens = torch.cat([tokens.mean(dim=1, keepdim=True), tokens], dim=1) + self.positional_embedding
        asking = tokens if all_tokens else tokens[:, :1]
        q, k, v = (
            linear(t, m.weight, m.bias, deltas.get((0, name)), rng).unflatten(-1, (self.heads, -1))
            for t, m, name in ((asking, self.q_proj, "q"), (tokens, self.k_proj, "k"), (tokens, self.v_proj, "v"))
        )
        out: Tensor = self.c_proj(attend(q, k, v).flatten(-2))
        return out if all_tokens else out.squeeze(1)


class ModifiedResNet(nn.Module):
    """CLIP's ResNet: a three-convolution stem, anti-aliased strides, an attention pool at the end.

    It has no token sequence to prompt: a prompt's mean is added to every position of the last feature map.
    Low-rank deltas fit the pool's q, k and v.
    """

    stages: tuple[str, ...] = ("pixels", "map", "features", "patches")
    layers = 1

    def __init__(self, embed: int, image_size: int, width: int, depths: tuple[int, ...], heads: int) -> None:
        super().__init__()
        half = width // 2
        self.conv1, self.bn1 = nn.Conv2d(3, half, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(half)
        self.conv2, self.bn2 = nn.Conv2d(half, half, 3, padding=1, bias=False), nn.BatchNorm2d(half)
        self.conv3, self.bn3 = nn.Conv2d(half, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
        inside = width
        for i, depth in enumerate(depths):
            blocks = []
            for j in range(depth):
                blocks.append(Bottleneck(inside, width * 2**i, stride=2 if i > 0 and j == 0 else 1))
                inside = 4 * width * 2**i
            setattr(self, f"layer{i + 1}", nn.Sequential(*blocks))
        self.depths, self.prompt_width, self.width = depths, inside, inside
        self.attnpool = AttentionPool(image_size // 32, inside, heads, embed)

    def map(self, x: Tensor) -> Tensor:
        for i in (1, 2, 3):
            x = F.relu(getattr(self, f"bn{i}")(getattr(self, f"conv{i}")(x)))
        x = F.avg_pool2d(x, 2)
        for i in range(len(self.depths)):
            x = getattr(self, f"layer{i + 1}")(x)
        return x

    def forward(
        self,
        x: Tensor,
        start: str = "pixels",
        stop: str = "features",
        prompts: Prompts = NO_PROMPTS,
        deltas: Deltas = NO_DELTAS,
        rng: torch.Generator | None = None,
    ) -> Tensor:
        begin, end = (self.stages.index(stage) for stage in (start, stop))
        if begin == end:
            return x
        if begin == 0:
            x = self.map(x)
        if end == 1:
            return x
        if EMBEDDED in prompts:
            x = x + prompts[EMBEDDED].tokens.mean(dim=-2)[:, None, None]
        out: Tensor = self.attnpool(x, stop == "patches", deltas, rng)
        return out
