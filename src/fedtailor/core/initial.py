"""Linear layers as parameters, and first values."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from .types import Params


def linear(theta: Params, name: str, x: Tensor) -> Tensor:
    return F.linear(x, theta[f"{name}.weight"], theta.get(f"{name}.bias"))


def linear_init(name: str, inside: int, outside: int, rng: torch.Generator) -> Params:
    """Weight and bias as torch.nn.Linear starts: uniform in ±1/√inside."""
    shapes = {f"{name}.weight": (outside, inside), f"{name}.bias": (outside,)}
    return {key: (torch.rand(shape, generator=rng) * 2 - 1) / math.sqrt(inside) for key, shape in shapes.items()}


def normal(shape: tuple[int, ...], rng: torch.Generator, std: float = 0.02) -> Tensor:
    return torch.randn(shape, generator=rng) * std
