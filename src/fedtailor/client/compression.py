"""Updates in fewer bits: what a client has changed, θ − θ₀, each tensor with a scale of its own."""

import torch

from ..base.errors import UserError
from ..core.types import Params

SCALE = ":scale"  # after a parameter's name
BITS = {"fp16": torch.float16, "int8": torch.int8}
LARGEST = {"fp16": 1.0, "int8": 127.0}


def compress(params: Params, start: Params, how: str, rng: torch.Generator) -> Params:
    """Parameters as their changes since `start`, in fewer bits; unchanged if they have no start or are not floats.

    int8 is rounded up or down at random, so that the mean over many clients has no bias.
    """
    packed: Params = {}
    for name, value in params.items():
        if how == "fp32" or not compressible(name, start):
            packed[name] = value
            continue
        change = value - start[name]
        scale = change.abs().amax() / LARGEST[how] if change.numel() else torch.zeros(())
        parts = change / scale if scale > 0 else torch.zeros_like(change)
        if how == "int8":
            parts = (parts + torch.rand(parts.shape, generator=rng)).floor().clamp(-127, 127)
        packed[name], packed[name + SCALE] = parts.to(BITS[how]), scale.to(torch.float32)
    return packed


def decompress(packed: Params, start: Params, how: str) -> Params:
    """What `compress` was given, as nearly as its bits can say it."""
    if how == "fp32":
        return dict(packed)
    params: Params = {}
    for name, value in packed.items():
        if name.endswith(SCALE) and name.removesuffix(SCALE) in packed:
            continue
        params[name] = value
        if compressible(name, start):
            scale, whole = packed.get(name + SCALE, value), start[name]
            if (value.dtype, value.shape, scale.dtype, scale.shape) != (BITS[how], whole.shape, torch.float32, ()):
                raise UserError(f"{name} is not packed as {how} of {tuple(whole.shape)}")
            params[name] = whole + (value.to(torch.float32) * scale).to(whole.dtype)
    return params


def compressible(name: str, start: Params) -> bool:
    return name in start and start[name].is_floating_point()
