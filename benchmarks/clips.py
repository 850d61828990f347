"""CLIPs with random weights in published shapes, and class names of one to three random tokens.

Weights and words change no cost, only shapes do; so nothing has to be downloaded, and features still differ.
"""

from __future__ import annotations

import math
from typing import Any, cast

import torch

from fedtailor.clip.load import load
from fedtailor.clip.model import Clip, Shape
from fedtailor.core.model import Model, Tuner, Words

SHAPES = {
    "vit-b16": Shape(512, 224, 16, 768, 12, 12, 77, 49408, 512, 12, 8),
    "vit-b32": Shape(512, 224, 32, 768, 12, 12, 77, 49408, 512, 12, 8),
    "tiny": Shape(16, 32, 8, 32, 3, 2, 77, 66, 32, 3, 2),
}
PERIOD, FIRST, NAMES = 1, 2, 8  # token ids: the full stop, the template's four words, where names begin


def make_clip(name: str) -> Clip:
    if name == "bundled":
        return load().clip
    drawn = torch.random.get_rng_state()
    torch.manual_seed(0)
    clip = Clip(SHAPES[name]).freeze()
    torch.random.set_rng_state(drawn)
    clip.logit_scale.fill_(math.log(100))  # as in the published models: differences show
    return clip


def make_model(clip: Clip, tuner: Tuner, classes: int, reads: str = "features") -> Model:
    vocab, rng = clip.shape.vocab, torch.Generator().manual_seed(1)
    lengths = torch.randint(1, 4, (classes,), generator=rng).tolist()
    names = tuple(tuple(torch.randint(NAMES, vocab - 2, (n,), generator=rng).tolist()) for n in lengths)
    template = tuple(range(FIRST, FIRST + 4))  # a photo of a
    sentences = tuple((*template, *name, PERIOD) for name in names)
    words = Words(names, sentences, (PERIOD,), vocab - 2, vocab - 1)
    return Model(clip, tuner, words, cast(Any, spell), reads=reads)


def spell(text: str) -> list[int]:
    """A token a word, for contexts that start as words."""
    return [FIRST + i % 4 for i, _ in enumerate(text.split())]
