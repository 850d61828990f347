"""The residual attention block of which both towers are made, with low-rank deltas on its four matrices.

Parameters have OpenAI's names. A block can be run whole, or for the one token of a sequence that CLIP reads out.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from .product import affine, times

MATRICES = "qkvo"
SCALE = {"quick_gelu": 1.702, "gelu": 1.0}
Rng = torch.Generator | None  # for dropout; None: evaluation
Rngs = Rng | tuple[Rng, ...]  # of several clients


class LowRank(NamedTuple):
    """W + scale · B A, applied as x ↦ scale · B (A drop(x)) beside the frozen matrix."""

    A: Tensor  # (R, W)
    B: Tensor  # (W, R)
    scale: float
    dropout: float = 0.0


class Several(NamedTuple):
    """Deltas of several clients, each for its own part of the batch axis."""

    parts: tuple[LowRank, ...]
    sizes: tuple[int, ...]


Deltas = Mapping[tuple[int, str], LowRank]  # (layer, "q" | "k" | "v" | "o") → its delta
TowerDeltas = Mapping[tuple[int, str], LowRank | Several]
NO_DELTAS: Deltas = {}


class LayerDeltas(NamedTuple):
    on: Mapping[str, LowRank | Several] = {}  # by matrix
    rng: Rngs = None


NONE_HERE = LayerDeltas()


def deltas_at(layer: int, deltas: TowerDeltas, rng: Rngs) -> LayerDeltas:
    return LayerDeltas({matrix: delta for (at, matrix), delta in deltas.items() if at == layer}, rng)


def drop(x: Tensor, rate: float, rng: Rng) -> Tensor:
    """Dropout, drawn on the CPU so that every device drops the same."""
    if rate == 0.0 or rng is None:
        return x
    kept = torch.rand(x.shape, generator=rng).to(x.device) >= rate
    return x * kept / (1.0 - rate)


def linear(x: Tensor, weight: Tensor, bias: Tensor, which: str, deltas: LayerDeltas) -> Tensor:
    out, delta = affine(x, weight, bias), deltas.on.get(which)
    if delta is None:
        return out
    parts, inputs = (delta.parts, x.split(delta.sizes)) if isinstance(delta, Several) else ((delta,), (x,))
    rngs = deltas.rng if isinstance(deltas.rng, tuple) else (deltas.rng,) * len(parts)
    low = [low_rank(*each) for each in zip(inputs, parts, rngs, strict=True)]
    return out + (low[0] if len(low) == 1 else torch.cat(low))


def low_rank(x: Tensor, delta: LowRank, rng: Rng) -> Tensor:
    return F.linear(F.linear(drop(x, delta.dropout, rng), delta.A), delta.B) * delta.scale


KEPT = 10  # numbers a token, layer and unit of width that a gradient needs: 2 norms' inputs, q, k, v, 1 attended, 4 MLP


def recomputed(layer: Callable[[Tensor, Rngs], Tensor], x: Tensor, rng: Rngs) -> Tensor:
    """A layer's output, of which only the input is kept: the gradient computes the rest again, with the same draws."""
    rngs = rng if isinstance(rng, tuple) else (rng,)
    states = [None if each is None else each.get_state() for each in rngs]
    first = [True]

    def run(x: Tensor) -> Tensor:
        copies = tuple(None if state is None else torch.Generator().set_state(state) for state in states)
        out = layer(x, copies if isinstance(rng, tuple) else copies[0])
        for each, copy in zip(rngs, copies, strict=True):
            if first and each is not None and copy is not None:
                each.set_state(copy.get_state())
        first.clear()
        return out

    return cast(Tensor, checkpoint(run, x, use_reentrant=False))


def split(x: Tensor, heads: int) -> Tensor:
    """(…, H · d) → (…, H, d)."""
    return x.view(*x.shape[:-1], heads, -1)


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    """Attention over (…, L, H, d), the layout that a projection leaves; mask is True where a query may look.

    With two leading axes they are taken as one, since the fused kernel knows only one; the mask is of the second."""
    if q.dim() == 5:
        N, C = q.shape[:2]
        mask = mask.repeat(N, 1, 1, 1) if mask is not None and N > 1 < len(mask) else mask
        out = attend(q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1), mask)
        return out.view(N, C, *out.shape[1:])
    q, k, v = (t.transpose(-3, -2) for t in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(-3, -2)


Lay = Callable[[Tensor], Tensor]


def as_they_are(x: Tensor) -> Tensor:
    return x


def attend_one(
    q: Tensor, x: Tensor, key: Tensor, value: Tensor, value_bias: Tensor, mask: Tensor | None = None
) -> Tensor:
    """Attention of one query (…, 1, H, d) to tokens (…, L, W), of which neither keys nor values are computed.

    The key matrix goes to the query, and the value matrix to the mean: q · K x = (Kᵀ q) · x, and Σ a V x = V Σ a x.
    A bias of the keys would add the same for all tokens, which softmax does not see.
    """
    *many, length, width = x.shape
    heads, d = q.shape[-2:]
    K, V = (matrix.view(heads, d, width) for matrix in (key, value))
    asks = torch.matmul(q.view(-1, heads, d).transpose(0, 1) * d**-0.5, K).transpose(0, 1)  # (B, H, W)
    scores = torch.matmul(asks, x.view(-1, length, width).mT)
    if mask is not None:
        scores = scores.view(*many, heads, length).masked_fill(~mask.squeeze(-2), -torch.inf).view_as(scores)
    means = torch.matmul(scores.softmax(dim=-1), x.view(-1, length, width))
    values = torch.matmul(means.transpose(0, 1), V.mT).transpose(0, 1)  # (B, H, d)
    return (values + value_bias.view(heads, d)).view_as(q)


def normal(*shape: int, std: float) -> nn.Parameter:
    """Drawn at random, unless it only holds the place of weights that are loaded: that would import half of torch."""
    values = torch.empty(shape)
    return nn.Parameter(values if values.is_meta else values.normal_(std=std))


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.in_proj_weight = normal(3 * width, width, std=width**-0.5)
        self.in_proj_bias = nn.Parameter(torch.zeros(3 * width))
        self.out_proj = nn.Linear(width, width)

    def project(self, x: Tensor, which: str, deltas: LayerDeltas) -> Tensor:
        """q, k or v of x: (…, L, W) → (…, L, H, d)."""
        at, width = MATRICES.index(which), x.shape[-1]
        rows = slice(at * width, (at + 1) * width)
        return split(linear(x, self.in_proj_weight[rows], self.in_proj_bias[rows], which, deltas), self.heads)

    def qkv(self, x: Tensor, deltas: LayerDeltas) -> tuple[Tensor, Tensor, Tensor]:
        if any(which in deltas.on for which in "qkv"):
            q, k, v = (self.project(x, which, deltas) for which in "qkv")
        else:  # one matrix product instead of three
            parts = affine(x, self.in_proj_weight, self.in_proj_bias).chunk(3, dim=-1)
            q, k, v = (split(part, self.heads) for part in parts)
        return q, k, v

    def ask(
        self, one: Tensor, x: Tensor, deltas: LayerDeltas, mask: Tensor | None = None, lay: Lay = as_they_are
    ) -> Tensor:
        """What one token of each sequence, (…, 1, W), gets from it, (…, 1, H, d); `lay` makes sequences of x."""
        q = self.project(one, "q", deltas)
        if "k" in deltas.on or "v" in deltas.on:
            k, v = (lay(self.project(x, which, deltas)) for which in "kv")
            return attend(q, k, v, mask)
        _, key, value = self.in_proj_weight.chunk(3)
        return attend_one(q, lay(x), key, value, self.in_proj_bias.chunk(3)[2], mask)


class FrozenMlp(torch.autograd.Function):
    """residual + W₂ act(W₁ x + b₁) + b₂ with frozen weights: of all that is N × 4W, only one is kept for the gradient.

    x·σ(1.702x) is silu(1.702x) / 1.702, and both factors go to what is narrow or added anyway.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, residual: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor, act: str
    ) -> Tensor:
        scale = SCALE[act]
        inner = times(x * scale, w1, b1 * scale)
        kept = ctx.needs_input_grad[0]
        ctx.act = act
        ctx.save_for_backward(*([inner, w1, w2] if kept else []))
        active = F.gelu(inner) if act == "gelu" else F.silu(inner, inplace=not kept)
        return torch.add(residual, times(active, w2, b2 * scale), alpha=1 / scale)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (grad,) = grads
        if not ctx.needs_input_grad[0]:
            return None, grad, None, None, None, None, None
        inner, w1, w2 = ctx.saved_tensors
        wide = times(grad, w2.t())
        back = torch.ops.aten.gelu_backward if ctx.act == "gelu" else torch.ops.aten.silu_backward
        return times(back(wide, inner), w1.t()), grad, None, None, None, None, None


class Mlp(nn.Module):
    def __init__(self, width: int, act: str) -> None:
        super().__init__()
        self.c_fc, self.c_proj, self.act = nn.Linear(width, 4 * width), nn.Linear(4 * width, width), act

    def forward(self, x: Tensor, residual: Tensor) -> Tensor:
        wide, narrow = self.c_fc, self.c_proj
        if wide.weight.requires_grad or torch.is_autocast_enabled(x.device.type):
            inner = wide(x)
            active = F.gelu(inner) if self.act == "gelu" else inner * torch.sigmoid(1.702 * inner)
            return residual.add(narrow(active))
        weights = wide.weight, wide.bias, narrow.weight, narrow.bias
        return cast(Tensor, FrozenMlp.apply(x, residual, *weights, self.act))  # type: ignore[no-untyped-call]


class Block(nn.Module):
    def __init__(self, width: int, heads: int, act: str) -> None:
        super().__init__()
        self.attn = Attention(width, heads)
        self.ln_1 = nn.LayerNorm(width)
        self.mlp = Mlp(width, act)
        self.ln_2 = nn.LayerNorm(width)

    def forward(self, x: Tensor, mask: Tensor | None = None, deltas: LayerDeltas = NONE_HERE) -> Tensor:
        """(…, L, W) → (…, L, W)."""
        return self.finish(x, attend(*self.attn.qkv(self.ln_1(x), deltas), mask), deltas)

    def first(self, x: Tensor, deltas: LayerDeltas = NONE_HERE) -> Tensor:
        """Only the first token's output, (B, L, W) → (B, W): it alone is a query."""
        normed = self.ln_1(x)
        return self.finish(x[:, :1], self.attn.ask(normed[:, :1], normed, deltas), deltas).squeeze(1)

    def finish(self, x: Tensor, attended: Tensor, deltas: LayerDeltas) -> Tensor:
        """What follows the attention: output matrix, residual, MLP."""
        last = self.attn.out_proj
        x = x + linear(attended.flatten(-2), last.weight, last.bias, "o", deltas)
        return cast(Tensor, self.mlp(self.ln_2(x), x))


class Transformer(nn.Module):
    """The list of blocks, which each tower goes through in its own way."""

    def __init__(self, width: int, layers: int, heads: int, act: str) -> None:
        super().__init__()
        self.resblocks = nn.ModuleList(Block(width, heads, act) for _ in range(layers))

    def __len__(self) -> int:
        return len(self.resblocks)

    def __getitem__(self, layer: int) -> Block:
        return cast(Block, self.resblocks[layer])
