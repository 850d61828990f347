"""x Wᵀ + b with a frozen W: by oneDNN on the processor, which is twice as fast as what torch takes there.

torch computes products of fp32 matrices by MKL, which does not use all of a processor that is not Intel's; oneDNN,
which comes with torch too, does. The operator is the one that torch's compiler calls; where it is missing, torch
decides.
"""

from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

FASTER = hasattr(torch.ops.mkldnn, "_linear_pointwise")


def onednn(x: Tensor, weight: Tensor) -> bool:
    """Whether it computes this product. Never by a measurement: a run that is resumed has to choose the same."""
    plain = x.dtype == weight.dtype == torch.float32 and x.device.type == "cpu"
    return FASTER and plain and bool(torch.backends.mkldnn.enabled) and not torch.is_autocast_enabled("cpu")


def times(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Without a gradient of its own."""
    if onednn(x, weight):
        return cast(Tensor, torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], ""))
    return F.linear(x, weight, bias)


class Frozen(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(weight)
        return times(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (weight,) = ctx.saved_tensors
        return times(grads[0], weight.t()), None, None


def affine(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    if weight.requires_grad or bias.requires_grad or not onednn(x, weight):
        return F.linear(x, weight, bias)
    return cast(Tensor, Frozen.apply(x, weight, bias))  # type: ignore[no-untyped-call]
