"""Floating point operations as they are dispatched, forward and backward, and what this machine could do at best.

torch's FlopCounterMode follows modules by hooks, which `torch.autograd.grad` does not like; its table of formulas is
all that is needed. Only matrix products, convolutions and attention count, two operations a multiply-add. Attention
counts whole, masked places too, as they are computed.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count

from fedtailor.clip.product import FASTER, times


def attention(query: Any, key: Any, value: Any, *_: Any, **__: Any) -> int:
    return int(sdpa_flop_count(query.shape, key.shape, value.shape))


def frozen_product(x: Any, weight: Any, *_: Any, **__: Any) -> int:
    return int(2 * x.numel() * weight.shape[0])


def attention_backward(grad: Any, query: Any, key: Any, value: Any, *_: Any, **__: Any) -> int:
    return int(sdpa_backward_flop_count(grad.shape, query.shape, key.shape, value.shape))


aten = torch.ops.aten
FORMULAS: dict[Any, Callable[..., int]] = {
    **flop_registry,
    aten._scaled_dot_product_flash_attention_for_cpu: attention,
    aten._scaled_dot_product_flash_attention_for_cpu_backward: attention_backward,
    **({torch.ops.mkldnn._linear_pointwise: frozen_product} if FASTER else {}),
}


class Counting(TorchDispatchMode):
    """`with Counting() as count: …`, then count.total."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.total = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func._overloadpacket in FORMULAS:
            self.total += FORMULAS[func._overloadpacket](*args, **(kwargs or {}), out_val=out)
        return out


def gflop(work: Callable[[], object]) -> float:
    count = Counting()
    with count:
        work()
    return count.total / 1e9


def matmul_peak(seconds: float = 1.0) -> dict[str, float]:
    """GFLOP a CPU second of the best fp32 matrix product, torch's own or oneDNN's, in this process's threads."""
    best = 0.0
    for size, product in itertools.product((256, 512, 1024, 2048), (torch.mm, times)):
        a, b = torch.randn(size, size), torch.randn(size, size)
        product(a, b)
        end = time.perf_counter() + seconds / 8
        while time.perf_counter() < end:
            began = time.process_time()
            product(a, b)
            took = time.process_time() - began
            best = max(best, 2 * size**3 / took / 1e9) if took > 1e-4 else best
    return {"gflops": best}
