"""Randomness by path: every draw has an address, so neither order nor engine can change it.

`generator(seed, "round", 3, "client", 7, "train")` gives the same stream wherever and whenever it is asked for.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch

Part = str | int


def number(*path: Part) -> int:
    """A 63-bit number that depends on every part of the path and nothing else."""
    digest = hashlib.blake2b(json.dumps(path).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def generator(*path: Part) -> torch.Generator:
    """Torch draws, always on the CPU: the same numbers whatever the device."""
    import torch  # here, since a look at data draws by numpy alone

    return torch.Generator().manual_seed(number(*path))


def numpy_generator(*path: Part) -> np.random.Generator:
    return np.random.default_rng(number(*path))
