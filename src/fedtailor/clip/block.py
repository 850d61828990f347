"""The residual attention block that both of CLIP's towers are made of, with low-rank deltas on its four matrices.

Parameters carry OpenAI's names. A block can be run whole, or for a few query positions only: CLIP reads out one token
of each sequence, so the last layer needs no others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

MATRICES = ("q", "k", "v", "o")


@dataclass(frozen=True)
class LowRank:
    """W + scale · B A, applied as x ↦ scale · B (A drop(x)) beside the frozen matrix."""

    A: Tensor  # (R, W)
    B: Tensor  # (W, R)
    scale: float
    dropout: float = 0.0


Deltas = Mapping[tuple[int, str], LowRank]  # (layer, "q" | "k" | "v" | "o") → its delta
NO_DELTAS: Deltas = {}


def drop(x: Tensor, rate: float, rng: torch.Generator | None) -> Tensor:
    """Dropout from a given generator (drawn on the CPU, so every device drops the same). No generator: evaluation."""
    if rate == 0.0 or rng is None:
        return x
    kept = torch.rand(x.shape, generator=rng).to(x.device) >= rate
    return x * kept / (1.0 - rate)


def linear(x: Tensor, weight: Tensor, bias: Tensor, delta: LowRank | None, rng: torch.Generator | None) -> Tensor:
    out = F.linear(x, weight, bias)
    if delta is None:
        return out
    return out + F.linear(F.linear(drop(x, delta.dropout, rng), delta.A), delta.B) * delta.scale


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    """Attention over (…, L, H, d), the layout that a projection leaves; mask is True where a query may look."""
    q, k, v = (t.transpose(-3, -2) for t in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(-3, -2)


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.in_proj_weight = nn.Parameter(torch.empty(3 * width, width))
        self.in_proj_bias = nn.Parameter(torch.zeros(3 * width))
        self.out_proj = nn.Linear(width, width)
        nn.init.normal_(self.in_proj_weight, std=width**-0.5)

    def split(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:-1], self.heads, -1)

    def project(self, x: Tensor, which: str, layer: int, deltas: Deltas, rng: torch.Generator | None) -> Tensor:
        """q, k or v of x: (…, L, W) → (…, L, H, d)."""
        width = x.shape[-1]
        at = MATRICES.index(which) * width
        weight, bias = self.in_proj_weight[at : at + width], self.in_proj_bias[at : at + width]
        return self.split(linear(x, weight, bias, deltas.get((layer, which)), rng))

    def qkv(self, x: Tensor, layer: int, deltas: Deltas, rng: torch.Generator | None) -> tuple[Tensor, Tensor, Tensor]:
        if any((layer, which) in deltas for which in "qkv"):
            q, k, v = (self.project(x, which, layer, deltas, rng) for which in "qkv")
        else:  # one product instead of three
            q, k, v = (self.split(t) for t in F.linear(x, self.in_proj_weight, self.in_proj_bias).chunk(3, dim=-1))
        return q, k, v

    def out(self, x: Tensor, layer: int, deltas: Deltas, rng: torch.Generator | None) -> Tensor:
        joined = x.flatten(-2)
        return linear(joined, self.out_proj.weight, self.out_proj.bias, deltas.get((layer, "o")), rng)


class Mlp(nn.Module):
    def __init__(self, width: int, act: str) -> None:
        super().__init__()
        self.act = act
        self.c_fc = nn.Linear(width, 4 * width)
        self.c_proj = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        hidden: Tensor = self.c_fc(x)
        hidden = hidden * torch.sigmoid(1.702 * hidden) if self.act == "quick_gelu" else F.gelu(hidden)
        out: Tensor = self.c_proj(hidden)
        return out


class Block(nn.Module):
    def __init__(self, width: int, heads: int, act: str) -> None:
        super().__init__()
        self.attn = Attention(width, heads)
        self.ln_1 = nn.LayerNorm(width)
        self.mlp = Mlp(width, act)
        self.ln_2 = nn.LayerNorm(width)

    def forward(
        self,
        x: Tensor,
        layer: int = 0,
        mask: Tensor | None = None,
        deltas: Deltas = NO_DELTAS,
        rng: torch.Generator | None = None,
    ) -> Tensor:
        """(…, L, W) → (…, L, W)."""
        q, k, v = self.attn.qkv(self.ln_1(x), layer, deltas, rng)
        return self.finish(x, attend(q, k, v, mask), layer, deltas, rng)

    def first(
        self, x: Tensor, layer: int = 0, deltas: Deltas = NO_DELTAS, rng: torch.Generator | None = None
    ) -> Tensor:
        """Only the first token's output, (…, L, W) → (…, W): all tokens are looked at, one looks."""
        normed = self.ln_1(x)
        q = self.attn.project(normed[..., :1, :], "q", layer, deltas, rng)
        k, v = (self.attn.project(normed, which, layer, deltas, rng) for which in "kv")
        return self.finish(x[..., :1, :], attend(q, k, v), layer, deltas, rng).squeeze(-2)

    def finish(self, x: Tensor, attended: Tensor, layer: int, deltas: Deltas, rng: torch.Generator | None) -> Tensor:
        """What follows the attention: output matrix, residual, MLP."""
        x = x + self.attn.out(attended, layer, deltas, rng)
        out: Tensor = x + self.mlp(self.ln_2(x))
        return out


class Transformer(nn.Module):
    """Only the list of blocks; each tower walks it in its own way."""

    def __init__(self, width: int, layers: int, heads: int, act: str) -> None:
        super().__init__()
        self.resblocks = nn.ModuleList(Block(width, heads, act) for _ in range(layers))

    def __len__(self) -> int:
        return len(self.resblocks)

    def __getitem__(self, layer: int) -> Block:
        block = self.resblocks[layer]
        assert isinstance(block, Block)
        return block
