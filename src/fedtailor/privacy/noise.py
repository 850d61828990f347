"""Normal noise that nobody without the client's secret can compute again.

A client has a secret of its own (OS entropy), kept with its state. Each request has a key made from that and from
everything in the request: asked the same again, as after a crash, a client gives the same noise, so that nothing can be
averaged out; asked anything else, other noise, so that nothing can be subtracted.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from ..core.types import Params

SECRET_BYTES = 32
UNIFORM_BITS = 53  # of a double


def new_secret() -> bytes:
    return secrets.token_bytes(SECRET_BYTES)


def seeded_secret(seed: int, who: int) -> bytes:
    """Of a simulation that shall give the same numbers again. Whoever knows the seed can take the noise away."""
    return hashlib.sha256(json.dumps(["privacy", seed, who]).encode()).digest()


def request_key(secret: bytes, about: tuple[str | int, ...], groups: Mapping[str, Params]) -> bytes:
    """From the secret and a whole request."""
    told = hmac.new(secret, json.dumps(about).encode(), hashlib.sha256)
    for group, params in groups.items():
        for name in sorted(params):
            value = params[name].detach().cpu().contiguous()
            told.update(json.dumps([group, name, str(value.dtype), list(value.shape)]).encode())
            told.update(value.flatten().view(torch.uint8).numpy().tobytes() if value.numel() else b"")
    return told.digest()


class Noise:
    """A stream of standard normal numbers, from a key."""

    def __init__(self, key: bytes) -> None:
        self.key, self.drawn = key, 0

    def __call__(self, like: Tensor) -> Tensor:
        """Of the same shape, in float64."""
        from scipy.special import ndtri  # here, since few runs draw any

        label = self.key + self.drawn.to_bytes(8, "little")
        self.drawn += 1
        raw = np.frombuffer(hashlib.shake_256(label).digest(8 * like.numel()), np.uint64)
        uniform = ((raw >> np.uint64(64 - UNIFORM_BITS)).astype(np.float64) + 0.5) / 2.0**UNIFORM_BITS
        return torch.from_numpy(np.asarray(ndtri(uniform))).reshape(like.shape)
