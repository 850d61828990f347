"""Half precision: the towers under autocast are near their fp32 results."""

from __future__ import annotations

import pytest
import torch
from clip_helpers import SMALL, low_rank, normal, relative, small_clip

from fedtailor.clip.model import Shape
from fedtailor.clip.text import arrange, pack
from fedtailor.clip.vision import EMBEDDED, Prompt

RESNET = Shape(**{**vars(SMALL), "patch": 0, "vision_width": 8, "vision_layers": (1, 1, 1, 1), "vision_heads": 4})


@pytest.mark.parametrize("shape", [SMALL, RESNET], ids=["ViT", "ResNet"])
@pytest.mark.parametrize("stop", ["features", "patches"])
def test_image_tower(shape: Shape, stop: str) -> None:
    """Broken: an operation between fp32 rows and half-precision tokens fails or loses everything."""
    clip = small_clip(shape)
    pixels = normal(3, 3, 32, 32)
    prompt = {EMBEDDED: Prompt(normal(2, clip.vision.prompt_width, seed=1).requires_grad_())}
    deltas = {(0, "q"): low_rank(clip.vision.width, seed=2, dtype=torch.float32)}
    want = clip.vision(pixels, stop=stop, prompts=prompt, deltas=deltas)
    with torch.autocast("cpu", torch.bfloat16):
        got = clip.vision(pixels, stop=stop, prompts=prompt, deltas=deltas)
    assert got.isfinite().all()
    assert 0 < relative(got.float(), want) < 0.05
    (gradient,) = torch.autograd.grad(got.float().sum(), prompt[EMBEDDED].tokens)
    assert gradient.isfinite().all()


def test_text_tower() -> None:
    """Broken: the fast path under autocast, with shared and own rows, a deep prompt and a delta."""
    tower = small_clip().text
    layout = pack([arrange(name, sos=118, eot=119, shared=2, own=1) for name in ([4], [5, 6], [7, 8, 9])])
    shared, own = normal(2, 32).requires_grad_(), normal(3, 1, 32, seed=1)
    deep, deltas = {1: normal(2, 32, seed=2)}, {(0, "v"): low_rank(32, seed=3, dtype=torch.float32)}
    want = tower(layout, shared, own, deep, deltas)
    with torch.autocast("cpu", torch.bfloat16):
        got = tower(layout, shared, own, deep, deltas)
    assert got.isfinite().all()
    assert 0 < relative(got.float(), want) < 0.05
    (gradient,) = torch.autograd.grad(got.float().sum(), shared)
    assert gradient.isfinite().all()
