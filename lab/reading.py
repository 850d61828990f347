"""The second part: with the image tower locked, a new text tower learns to read how something is said.

In the first part it learned names, and to overlook what stands around them. Now captions are alike only if they say
the same name in the same register, a few classes and their look-alikes at a time, and little is heard of the sentence
encoder.

In half of the steps the names have a learned context in front of them, as in prompt learning, instead of words: random
rows of many sizes, moved to where they do harm. A text tower that has never met such rows takes them for
anything at all, and the first that skewed clients learn ruins it: a lab would then compare how methods bear that, and
nothing else. These sentences count as careless, so a context that is taken for a careful one is still worth learning.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from rich.progress import track
from scripts.pretrain import encode, prepare
from tokenizers import Tokenizer
from torch import Tensor, nn

from fedtailor.base.rng import generator, numpy_generator
from fedtailor.clip.model import Clip

from .captions import Captions, nearest
from .pool import Pool
from .train import Plan, contrasted, say

FEW = 10  # classes in a step, and their look-alikes
KINDS, SCRIBBLES = 0.15, 0.25  # of the captions
HEARD = 0.05  # weight of the sentence encoder
LED = 0.5  # part of the steps with a context in front
USUAL, ROWS = 4, 16  # rows of a context: half of the time, and at most
SIZES = 0.005, 0.5  # standard deviations of its numbers
HARMS, HARM, LEAST = 2, 0.5, 0.01  # how often it is moved, and how far: as a part of its size, which is at least


def reread(
    clip: Clip, captions: Captions, tokenizer: Tokenizer, sentences: Tensor, pictures: Tensor, plan: Plan
) -> None:
    """Of minutes: it begins anew if it was stopped. `pictures` (N, D) are the pool's features by the locked tower."""
    for parameter in clip.vision.parameters():
        parameter.requires_grad_(False)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(plan.seed)
        fresh = Clip(clip.shape)
        clip.text, clip.logit_scale = fresh.text, fresh.logit_scale
        hears = nn.Linear(clip.shape.embed, sentences.shape[1])
    learning = [*clip.text.parameters(), clip.logit_scale, *hears.parameters()]
    optimizer = torch.optim.AdamW(learning, lr=plan.rate, betas=(0.9, 0.98), weight_decay=plan.decay, fused=True)
    for step in range(plan.rereading):
        for group in optimizer.param_groups:
            group["lr"] = plan.rate * min((step + 1) / 50, 0.5 * (1 + math.cos(math.pi * step / plan.rereading)))
        rng = numpy_generator("lab", plan.seed, "reread", step)
        led = rng.random() < LED
        which = met(captions, plan.size, rng, few=bool(step % 2))
        said = [captions.say(int(i), rng, KINDS, SCRIBBLES, careful=False if led else None) for i in which]
        names = torch.tensor([one.name for one in said])
        alike = 2 * names + torch.tensor([one.careful for one in said])
        score = partial(contrast_of, clip, pictures[which], alike)
        if led:
            rows = generator("lab", plan.seed, "rows", step)
            text = behind_a_context(clip, tokenizer, [captions.names[one.name] for one in said], score, rng, rows)
        else:
            text = clip.text.plain(encode(tokenizer, [one.text for one in said]))
        contrast, name = score(text), 1 - F.cosine_similarity(hears(text), sentences[names]).mean()
        optimizer.zero_grad()
        (contrast + HEARD * name).backward()
        nn.utils.clip_grad_norm_(learning, 1.0)
        optimizer.step()
        with torch.no_grad():
            clip.logit_scale.clamp_(max=math.log(100))
        if (step + 1) % 100 == 0:
            say.print(f"reading {step + 1}/{plan.rereading}  contrast {contrast.item():.3f}  name {name.item():.3f}")


def met(captions: Captions, size: int, rng: np.random.Generator, few: bool) -> NDArray[np.int64]:
    """Pictures as they are met, or as many of each of a few classes that are to be told apart."""
    if not few:
        return rng.choice(len(captions.chance), size, p=captions.chance)
    classes = captions.some_classes(FEW, rng)
    return np.concatenate([rng.choice(captions.members[one], size // len(classes)) for one in classes])


def contrast_of(clip: Clip, pictures: Tensor, alike: Tensor, text: Tensor) -> Tensor:
    return contrasted(clip.scale * pictures @ F.normalize(text, dim=-1).T, alike)


def behind_a_context(
    clip: Clip,
    tokenizer: Tokenizer,
    names: list[str],
    score: Callable[[Tensor], Tensor],
    rng: np.random.Generator,
    draws: torch.Generator,
) -> Tensor:
    """(B, D) features of the names behind one context, which was random and went uphill along `score`."""
    count = int(rng.integers(1, ROWS + 1)) if rng.random() < 0.5 else USUAL
    size = math.exp(rng.uniform(*np.log(SIZES)))
    ids = encode(tokenizer, ["x " * count + f"{name}." for name in names])  # an x for each row
    context = size * torch.randn(count, clip.text.width, generator=draws)
    for _ in range(HARMS):
        context.requires_grad_()
        (slope,) = torch.autograd.grad(score(read(clip, ids, context)), context)
        step = HARM * max(size, LEAST) / (slope.square().mean().sqrt() + 1e-12)
        context = context.detach() + step * slope
    return read(clip, ids, context)


def read(clip: Clip, ids: Tensor, context: Tensor) -> Tensor:
    words = clip.text.token_embedding(ids)
    rows = context.expand(len(ids), -1, -1)
    return clip.text.plain(ids, torch.cat([words[:, :1], rows, words[:, 1 + len(context) :]], dim=1))


@torch.no_grad()
def picture_features(clip: Clip, pool: Pool) -> Tensor:
    """(N, D) normalised, by the image tower as it is."""
    clip.vision.eval()
    parts = np.array_split(pool.pixels, len(pool.pixels) // 500 + 1)
    return F.normalize(torch.cat([clip.vision(prepare(part)) for part in track(parts, "pictures")]), dim=-1)


def look_alikes(pool: Pool, features: NDArray[np.float32]) -> dict[str, NDArray[np.int64]]:
    """For each class of a source the one whose pictures are nearest to its own, by these features of the pool."""
    return {
        name: nearest(features[pool.source == i], pool.label[pool.source == i], len(classes))
        for i, (name, classes) in enumerate(pool.names.items())
    }
