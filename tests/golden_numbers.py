"""The authors' numbers (tests/golden/README.md) and the small CLIP that they were computed on."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedtailor.clip.layouts import from_openai, shape_from_openai
from fedtailor.clip.load import fill
from fedtailor.clip.model import Clip

GOLDEN = Path(__file__).parent / "golden"
SOS, EOT = 598, 599
LOGITS, GRADIENT = 2e-4, 1e-4  # recommended tolerances: absolute, and of the tensor's norm


@cache
def golden(name: str) -> dict[str, Tensor]:
    with np.load(GOLDEN / f"{name}.npz") as file:
        return {key: torch.from_numpy(file[key]) for key in file.files}


@cache
def golden_clip() -> Clip:
    state = {key: value.float() for key, value in golden("weights").items()}
    clip = Clip(shape_from_openai(state, folder=GOLDEN))
    fill(clip, from_openai(state), "weights.npz")
    return clip.freeze()


def close(ours: Tensor, theirs: Tensor) -> None:
    """Logits, features and losses."""
    torch.testing.assert_close(ours, theirs.to(ours.dtype), atol=LOGITS, rtol=0)


def close_gradient(ours: Tensor, theirs: Tensor) -> None:
    assert theirs.norm() > 0
    assert (ours - theirs).norm() <= GRADIENT * theirs.norm()
