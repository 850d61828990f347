"""The residual attention block of which both towers are made, with low-rank deltas on its four matrices.

Parameters have OpenAI's names. A block can be run whole, or for the one token of a sequence that CLIP reads out.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn

MATRICES = "qkvo"
Rng = torch.Generator | None  # for dropout; None: evaluation


@dataclass(frozen=True)
class LowRank:
    """W + scale · B A, applied as x ↦ scale · B (A drop(x)) beside the frozen matrix."""

    A: Tensor  # (R, W)
    B: Tensor  # (W, R)
    scale: float
    dropout: float = 0.0


Deltas = Mapping[tuple[int, str], LowRank]  # (layer, "q" | "k" | "v" | "o") → its delta
NO_DELTAS: Deltas = {}


@dataclass(frozen=True)
class LayerDeltas:
    """The deltas of one layer, by matrix."""

    on: Mapping[str, LowRank] = field(default_factory=dict)
    rng: Rng = None


NONE_HERE = LayerDeltas()


def deltas_at(layer: int, deltas: Deltas, rng: Rng) -> LayerDeltas:
    return LayerDeltas({matrix: delta for (at, matrix), delta in deltas.items() if at == layer}, rng)


def drop(x: Tensor, rate: float, rng: Rng) -> Tensor:
    """Dropout, drawn on the CPU so that every device drops the same."""
    if rate == 0.0 or rng is None:
        return x
    kept = torch.rand(x.shape, generator=rng).to(x.device) >= rate
    return x * kept / (1.0 - rate)


def linear(x: Tensor, weight: Tensor, bias: Tensor, which: str, deltas: LayerDeltas) -> Tensor:
    out, delta = F.linear(x, weight, bias), deltas.on.get(which)
    if delta is None:
        return out
    return out + F.linear(F.linear(drop(x, delta.dropout, deltas.rng), delta.A), delta.B) * delta.scale


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

    def project(self, x: Tensor, which: str, deltas: LayerDeltas) -> Tensor:
        """q, k or v of x: (…, L, W) → (…, L, H, d)."""
        at, width = MATRICES.index(which), x.shape[-1]
        rows = slice(at * width, (at + 1) * width)
        return self.split(linear(x, self.in_proj_weight[rows], self.in_proj_bias[rows], which, deltas))

    def qkv(self, x: Tensor, deltas: LayerDeltas) -> tuple[Tensor, Tensor, Tensor]:
        if any(which in deltas.on for which in "qkv"):
            q, k, v = (self.project(x, which, deltas) for which in "qkv")
        else:  # one matrix product instead of three
            q, k, v = (self.split(t) for t in F.linear(x, self.in_proj_weight, self.in_proj_bias).chunk(3, dim=-1))
        return q, k, v

    def out(self, x: Tensor, deltas: LayerDeltas) -> Tensor:
        return linear(x.flatten(-2), self.out_proj.weight, self.out_proj.bias, "o", deltas)


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

    def forward(self, x: Tensor, mask: Tensor | None = None, deltas: LayerDeltas = NONE_HERE) -> Tensor:
        """(…, L, W) → (…, L, W)."""
        q, k, v = self.attn.qkv(self.ln_1(x), deltas)
        return self.finish(x, attend(q, k, v, mask), deltas)

    def first(self, x: Tensor, deltas: LayerDeltas = NONE_HERE) -> Tensor:
        """Only the first token's output, (…, L, W) → (…, W): it alone is a query."""
        normed = self.ln_1(x)
        q = self.attn.project(normed[..., :1, :], "q", deltas)
        k, v = (self.attn.project(normed, which, deltas) for which in "kv")
        return self.finish(x[..., :1, :], attend(q, k, v), deltas).squeeze(-2)

    def finish(self, x: Tensor, attended: Tensor, deltas: LayerDeltas) -> Tensor:
        """What follows the attention: output matrix, residual, MLP."""
        x = x + self.attn.out(attended, deltas)
        out: Tensor = x + self.mlp(self.ln_2(x))
        return out


class Transformer(nn.Module):
    """The list of blocks, which each tower goes through in its own way."""

    def __init__(self, width: int, layers: int, heads: int, act: str) -> None:
        super().__init__()
        self.resblocks = nn.ModuleList(Block(width, heads, act) for _ in range(layers))

    def __len__(self) -> int:
        return len(self.resblocks)

    def __getitem__(self, layer: int) -> Block:
        block = self.resblocks[layer]
        assert isinstance(block, Block)
        return block
