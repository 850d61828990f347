"""CLIP's image towers, as lines of named stages, at which a tuner may enter and a cache may cut.

`tower(x, start, stop)` runs a tower between any two: `("pixels", "block3")` is what the cache computes once for a tuner
whose first prompt enters at layer 3, `("block3", "features")` what training repeats.

    ViT      pixels · embedded · block1 · … · block{n−1} · features | patches
    ResNet   pixels · map · features | patches

`features` is the read-out (B, D); `patches` is every token projected, (B, 1 + L, D), the read-out first.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .block import (
    KEPT,
    MATRICES,
    NO_DELTAS,
    LayerDeltas,
    Rngs,
    TowerDeltas,
    Transformer,
    attend,
    attend_one,
    deltas_at,
    linear,
    normal,
    recomputed,
    split,
)

EMBEDDED = -1  # the prompt layer before ln_pre; for a ResNet, the feature map before its attention pool


class Prompt(NamedTuple):
    """Learned tokens that enter at one layer's input."""

    tokens: Tensor  # (M, W), or (B, M, W) if each picture has its own
    replace: bool = False  # overwrite the last M tokens instead of being appended
    keep: bool = True  # stay in the sequence behind that layer


Prompts = Mapping[int, Prompt]
NO_PROMPTS: Prompts = {}


class ImageTower(nn.Module):
    """A line of stages, and what tuners may do to it."""

    kind: str  # as errors call it
    stages: tuple[str, ...]
    layers: int  # that can be prompted or have deltas
    prompt_width: int
    later_prompts: bool  # whether prompts may enter, be replaced and be dropped behind the first layer
    width: int  # of the attention matrices that low-rank deltas fit
    delta_matrices: str  # which of q, k, v, o these are
    __call__: Callable[..., Tensor]

    def forward(
        self,
        x: Tensor,
        start: str = "pixels",
        stop: str = "features",
        prompts: Prompts = NO_PROMPTS,
        deltas: TowerDeltas = NO_DELTAS,
        rng: Rngs = None,
        recompute: bool = False,
    ) -> Tensor:
        begin, end = self.stages.index(start), self.stages.index(stop)
        if begin == end:
            return x
        if begin == 0:
            x = self.embed(x)
        return x if end == 1 else self.go_on(x, max(begin, 1), end, prompts, deltas, rng, recompute)

    def kept(self, x: Tensor, start: str, prompts: Prompts) -> int:
        """About how many bytes of activations a gradient needs, from that stage on."""
        return 0

    def embed(self, pixels: Tensor) -> Tensor:
        """From pixels to the next stage."""
        raise NotImplementedError

    def go_on(
        self, x: Tensor, begin: int, end: int, prompts: Prompts, deltas: TowerDeltas, rng: Rngs, recompute: bool
    ) -> Tensor:
        """From a stage behind the pixels to a later one."""
        raise NotImplementedError


class VisionTransformer(ImageTower):
    kind, later_prompts, delta_matrices = "a ViT", True, MATRICES

    def __init__(self, embed: int, image_size: int, patch: int, width: int, layers: int, heads: int, act: str) -> None:
        super().__init__()
        self.layers, self.prompt_width, self.width = layers, width, width
        self.stages = ("pixels", "embedded", *(f"block{i}" for i in range(1, layers)), "features", "patches")
        self.conv1 = nn.Conv2d(3, width, patch, stride=patch, bias=False)
        self.class_embedding = normal(width, std=width**-0.5)
        self.positional_embedding = normal((image_size // patch) ** 2 + 1, width, std=width**-0.5)
        self.ln_pre = nn.LayerNorm(width)
        self.transformer = Transformer(width, layers, heads, act)
        self.ln_post = nn.LayerNorm(width)
        self.proj = normal(width, embed, std=width**-0.5)

    def embed(self, pixels: Tensor) -> Tensor:
        patches = self.conv1(pixels).flatten(2).transpose(1, 2)
        cls = self.class_embedding.to(patches.dtype).expand(pixels.shape[0], 1, -1)
        return torch.cat([cls, patches], dim=1) + self.positional_embedding

    def go_on(
        self, x: Tensor, begin: int, end: int, prompts: Prompts, deltas: TowerDeltas, rng: Rngs, recompute: bool
    ) -> Tensor:
        if begin == 1:
            x = self.ln_pre(enter(x, prompts.get(EMBEDDED)))
        for i in range(begin - 1, min(end - 1, self.layers)):
            layer = partial(self.layer, i, self.stages[end] == "features", prompts.get(i), deltas)
            x = recomputed(layer, x, rng) if recompute else layer(x, rng)
        return self.leave(x) if end > self.layers else x

    def layer(
        self, i: int, reads_first: bool, prompt: Prompt | None, deltas: TowerDeltas, x: Tensor, rng: Rngs
    ) -> Tensor:
        """(B, L, W) → the same; behind the last layer only the first token, (B, W), if that alone is read."""
        block, here, x = self.transformer[i], deltas_at(i, deltas, rng), enter(x, prompt)
        if i == self.layers - 1 and reads_first:
            return block.first(x, here)
        x = block(x, deltas=here)
        return x[:, : -prompt.tokens.shape[-2]] if prompt and not prompt.keep else x

    def kept(self, x: Tensor, start: str, prompts: Prompts) -> int:
        learned = sum(prompt.tokens.shape[-2] for prompt in prompts.values())
        tokens = x.shape[0] * (len(self.positional_embedding) + learned)
        return 4 * (self.layers - max(0, self.stages.index(start) - 1)) * self.width * KEPT * tokens

    def leave(self, x: Tensor) -> Tensor:
        return torch.matmul(self.ln_post(x), self.proj)


def enter(x: Tensor, prompt: Prompt | None) -> Tensor:
    if prompt is None:
        return x
    rows = prompt.tokens.to(x.dtype).expand(x.shape[0], -1, -1)
    return torch.cat([x[:, : -rows.shape[1]] if prompt.replace else x, rows], dim=1)


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
            self.downsample = nn.Sequential(nn.Conv2d(inside, 4 * width, 1, bias=False), nn.BatchNorm2d(4 * width))

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))))
        aside = x if self.downsample is None else self.downsample(self.pool(x))
        return F.relu(self.bn3(self.conv3(self.pool(out))) + aside)

    def pool(self, x: Tensor) -> Tensor:
        return F.avg_pool2d(x, self.stride) if self.stride > 1 else x


class AttentionPool(nn.Module):
    def __init__(self, side: int, width: int, heads: int, embed: int) -> None:
        super().__init__()
        self.heads = heads
        self.positional_embedding = normal(side**2 + 1, width, std=width**-0.5)
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(width, width) for _ in range(3))
        self.c_proj = nn.Linear(width, embed)

    def forward(self, x: Tensor, all_tokens: bool, deltas: LayerDeltas) -> Tensor:
        tokens = x.flatten(2).transpose(1, 2)  # (B, L, W)
        tokens = torch.cat([tokens.mean(dim=1, keepdim=True), tokens], dim=1) + self.positional_embedding

        def project(x: Tensor, matrix: nn.Linear, which: str) -> Tensor:
            return split(linear(x, matrix.weight, matrix.bias, which, deltas), self.heads)

        q = project(tokens if all_tokens else tokens[:, :1], self.q_proj, "q")
        if all_tokens or "k" in deltas.on or "v" in deltas.on:
            attended = attend(q, project(tokens, self.k_proj, "k"), project(tokens, self.v_proj, "v"))
        else:
            attended = attend_one(q, tokens, self.k_proj.weight, self.v_proj.weight, self.v_proj.bias)
        out = cast(Tensor, self.c_proj(attended.flatten(-2)))
        return out if all_tokens else out.squeeze(1)


class ModifiedResNet(ImageTower):
    """CLIP's ResNet: a three-convolution stem, anti-aliased strides, an attention pool at the end.

    It has no token sequence to prompt: a prompt's mean is added to every position of the last feature map.
    Low-rank deltas fit the pool's q, k and v.
    """

    kind, later_prompts, delta_matrices = "a ResNet", False, "qkv"
    stages = ("pixels", "map", "features", "patches")
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

    def embed(self, pixels: Tensor) -> Tensor:
        x = F.relu(self.bn2(self.conv2(F.relu(self.bn1(self.conv1(pixels))))))
        x = F.avg_pool2d(F.relu(self.bn3(self.conv3(x))), 2)
        for i in range(len(self.depths)):
            x = getattr(self, f"layer{i + 1}")(x)
        return x

    def go_on(
        self, x: Tensor, begin: int, end: int, prompts: Prompts, deltas: TowerDeltas, rng: Rngs, recompute: bool
    ) -> Tensor:
        if EMBEDDED in prompts:
            x = x + prompts[EMBEDDED].tokens.mean(dim=-2)[..., None, None]
        return cast(Tensor, self.attnpool(x, self.stages[end] == "patches", deltas_at(0, deltas, rng)))
