"""FedTPG's prompt generator: M learned queries read the class names, and what they find is the context of all classes.

One cross-attention block without a residual, then a gated feed-forward block with one. The self-attention blocks that
may follow in the released code (none by default) are left out; so is the keys' bias, which a softmax does not see.
"""

import math

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from ..base.errors import UserError
from ..clip.block import attend
from ..core import Bend, Context, Model, Params, Tuner, linear, linear_init, normal


class PromptGenerator(Tuner):
    acts_on = frozenset({"text"})

    length: int = Field(4, ge=1, title="m", description="queries, and context rows made from them")
    heads: int = Field(4, ge=1, description="of the attention; a divisor of the text tower's width")

    def context(self, model: Model) -> Context:
        return Context(shared=self.length)

    def init(self, model: Model, rng: torch.Generator) -> Params:
        D, W = model.clip.shape.embed, model.clip.text.width
        if W % self.heads:
            raise UserError(f"heads={self.heads} does not divide the text tower's width {W}; choose one that does")
        return {
            "generator.queries": normal((self.length, W), rng),
            **norm_init("generator.norm_q", W),
            **norm_init("generator.norm_kv", D),
            **attention_init("generator", W, D, rng),
            **norm_init("generator.norm_ff", W),
            **linear_init("generator.widen", W, 8 * W, rng),
            **linear_init("generator.narrow", 4 * W, W, rng),
        }

    def bend(self, theta: Params, model: Model) -> Bend:
        return Bend(shared=generate(theta, model.names, self.heads))


def generate(theta: Params, names: Tensor, heads: int) -> Tensor:
    """(M, W) context rows from the class names' features T, (C, D)."""

    def norm(name: str, x: Tensor) -> Tensor:
        return F.layer_norm(x, x.shape[-1:], theta[f"generator.{name}.weight"], theta[f"generator.{name}.bias"])

    queries, read = norm("norm_q", theta["generator.queries"]), norm("norm_kv", names)
    sides = (("q", queries), ("k", read), ("v", read))
    q, k, v = (linear(theta, f"generator.{which}", x).unflatten(-1, (heads, -1)) for which, x in sides)  # (L, H, d)
    x = linear(theta, "generator.out", attend(q, k, v).flatten(-2))
    value, gate = linear(theta, "generator.widen", norm("norm_ff", x)).chunk(2, dim=-1)
    return x + linear(theta, "generator.narrow", value * F.gelu(gate))


def norm_init(name: str, width: int) -> Params:
    return {f"{name}.weight": torch.ones(width), f"{name}.bias": torch.zeros(width)}


def attention_init(name: str, W: int, D: int, rng: torch.Generator) -> Params:
    """As torch.nn.MultiheadAttention begins, with queries of width W on keys and values of width D.

    Xavier's bound on q, k and v is that of one (3W, W) matrix where the widths agree, else of each; biases are zero.
    """
    theta, outside = {}, 3 * W if D == W else W
    for which, inside in (("q", W), ("k", D), ("v", D)):
        bound = math.sqrt(6 / (inside + outside))
        theta[f"{name}.{which}.weight"] = (torch.rand(W, inside, generator=rng) * 2 - 1) * bound
    zero = {f"{name}.{which}.bias": torch.zeros(W) for which in ("q", "v", "out")}
    return theta | linear_init(f"{name}.out", W, W, rng) | zero
