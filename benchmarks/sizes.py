"""One training step at some size: so many classes, prompt tokens or pictures. What `growth` fits its exponents to."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Any

import torch

from fedtailor.clip.text import pack
from fedtailor.core.losses import task_loss
from fedtailor.core.model import Model, Tuner
from fedtailor.core.optim import gradient_of
from fedtailor.core.types import Batch, Params
from fedtailor.tuners.text_prompt import TextPrompt
from fedtailor.tuners.visual_prompt import VisualPrompt

from .clips import make_clip, make_model
from .flops import gflop
from .measure import measured

SHORT = 0.2  # CPU seconds: a shorter step is measured over several


def step_of(clip: str, tuner: Tuner, classes: int, images: int) -> dict[str, Any]:
    model = make_model(make_clip(clip), tuner, classes)
    rng = torch.Generator().manual_seed(2)
    theta = {name: value.requires_grad_() for name, value in model.init(rng).items()}
    size = model.clip.shape.image_size
    with torch.no_grad():
        x = model.clip.vision(torch.randn(images, 3, size, size, generator=rng), "pixels", model.stage)
    batch = Batch(x, torch.randint(classes, (images,), generator=rng), torch.arange(images))
    slope = gradient_of(lambda theta, batch: task_loss(model.logits(theta, batch.x), batch))
    packed = packing(model)
    model.layout, model.zero_shot  # noqa: B018  # made once a run: neither timed nor counted in a step

    def work() -> Params:
        return slope(theta, batch)

    began = time.process_time()
    count = gflop(work)  # this is the first step, too, in which torch sets itself up
    times = max(1, min(20, int(SHORT / max(1e-3, time.process_time() - began))))
    _, cost = measured(lambda: [work() for _ in range(times)])
    spent = {"cpu_s": cost.cpu_s / times, "wall_s": cost.wall_s / times}
    return {**asdict(cost), **spent, "gflop": count, "pack_s": packed}


def packing(model: Model) -> float:
    """CPU seconds to lay the sentences out, of several times where that is short."""
    sentences, times = model.sentences("both"), max(1, 2000 // model.classes)
    began = time.process_time()
    for _ in range(times):
        pack(sentences, model.device, model.classes)
    return (time.process_time() - began) / times


def in_classes(clip: str, size: int) -> dict[str, Any]:
    return step_of(clip, TextPrompt(length=16), size, 32)


def in_tokens(clip: str, size: int) -> dict[str, Any]:
    return step_of(clip, TextPrompt(length=size), 100, 32)


def in_pictures(clip: str, size: int) -> dict[str, Any]:
    """Where the image tower is tuned: nothing of its layers can be cached."""
    return step_of(clip, VisualPrompt(length=4), 100, size)


def in_pictures_cached(clip: str, size: int) -> dict[str, Any]:
    """Where it is not: features come from the cache."""
    return step_of(clip, TextPrompt(length=16), 100, size)
