"""Normal noise that nobody without the client's secret can compute again.

A client has a secret of its own (OS entropy), on its disk before anything leaves. Each request has a key made from
that, from everything in the request and from the state that it finds the client in: asked the same again, as after a
crash, a client gives the same noise, so that nothing can be averaged out; asked anything else, other noise, so that
nothing can be subtracted.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..base.errors import UserError
from ..base.files import write_atomic
from ..core.types import Params

SECRET, SECRET_BYTES = "secret", 32  # its file
UNIFORM_BITS = 53  # of a double


def new_secret() -> bytes:
    return secrets.token_bytes(SECRET_BYTES)


def kept_secret(folder: Path) -> bytes:
    """Of the clients that keep their states in a folder; made when it is first asked for."""
    path = folder / SECRET
    if not path.exists():
        write_atomic(path, new_secret(), private=True)
    if len(found := path.read_bytes()) != SECRET_BYTES:
        raise UserError(f"{path} is damaged: {len(found)} bytes, not {SECRET_BYTES}; put it back, or run anew")
    return found


def client_secret(kept: bytes, who: int) -> bytes:
    """Of one of the clients that keep a secret together."""
    return hmac.new(kept, str(who).encode(), hashlib.sha256).digest()


def seeded_secret(seed: int, who: int) -> bytes:
    """Of a simulation that shall give the same numbers again. Whoever knows the seed can take the noise away."""
    return hashlib.sha256(json.dumps(["privacy", seed, who]).encode()).digest()


def request_key(secret: bytes, about: tuple[str | int, ...], groups: Mapping[str, Params]) -> bytes:
    """From the secret, a whole request and what the client keeps."""
    told = hmac.new(secret, json.dumps(about).encode(), hashlib.sha256)
    for group, params in groups.items():
        for name in sorted(params):
            value = params[name].detach().cpu().contiguous()
            told.update(json.dumps([group, name, str(value.dtype), list(value.shape)]).encode())
            told.update(value.flatten().view(torch.uint8).numpy().tobytes() if value.numel() else b"")
    return told.digest()


class Noise:
    """A stream of standard normal numbers, and of uniform ones, from a key."""

    def __init__(self, key: bytes) -> None:
        self.key, self.drawn = key, 0

    def uniform(self, n: int) -> NDArray[np.float64]:
        """Between 0 and 1, never one of them."""
        label = self.key + self.drawn.to_bytes(8, "little")
        self.drawn += 1
        raw = np.frombuffer(hashlib.shake_256(label).digest(8 * n), np.uint64)
        return np.asarray(((raw >> np.uint64(64 - UNIFORM_BITS)).astype(np.float64) + 0.5) / 2.0**UNIFORM_BITS)

    def __call__(self, like: Tensor) -> Tensor:
        """Of the same shape, in float64."""
        from scipy.special import ndtri  # here, since few runs draw any

        return torch.from_numpy(np.asarray(ndtri(self.uniform(like.numel())))).reshape(like.shape)
