"""Pretrain the bundled CLIP: a small one of our own, on pictures and captions made from a seed.

    python scripts/pretrain.py                    # about 15 minutes on two cores; writes src/fedtailor/clip/bundled

Nothing is downloaded. The world it learns from is drawn by the pen of `fedtailor.data.drawn`, but is wider than that dataset:
every texture × colour × shape, in many styles, with captions as loose as people's are. Some figures are common and some
rare, some names are rarely used for what they name, and attributes go unsaid or are wrong. So the model comes out
knowing some of `drawn`'s classes well and others hardly at all, as CLIP does with real ones.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from rich.console import Console
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from fedtailor.clip.model import Clip, Shape
from fedtailor.data.drawn import COLOURS, DUSK, SHAPES, TEXTURES, Style, draw, drawn
from fedtailor.rng import generator, number, numpy_generator

SOS, EOT = "<|startoftext|>", "<|endoftext|>"
MEAN, STD = 0.45, 0.25  # of the world's pixels, the same for the three colours
say = Console()

# ---- the world: what is drawn, how often, and what people say about it --------------------------------------------


@dataclass(frozen=True)
class Look:
    """A style of picture, how often it is met, and what it is called."""

    style: Style
    weight: float
    words: tuple[str, ...]


LOOKS = (
    Look(Style(), 0.42, ("clear", "sharp", "clean")),
    Look(Style(light=(0.15, 0.3)), 0.10, ("bright", "light")),
    Look(Style(light=(-0.4, -0.2)), 0.10, ("dark", "dim")),
    Look(Style(contrast=(0.35, 0.65)), 0.09, ("faded", "pale")),
    Look(Style(noise=(0.10, 0.20)), 0.09, ("noisy", "grainy")),
    Look(Style(cover=1.0), 0.08, ("hidden", "covered")),
    Look(Style(mottle=0.3, tint=0.12), 0.06, ("patchy", "messy")),
    Look(DUSK, 0.06, ("dusky", "gloomy")),
)

# What a thing is called, and how often it is called so; "" is unsaid. A name not listed here is always used.
CALLED: dict[str, dict[str, float]] = {
    "plain": {"plain": 0.3, "": 0.7},
    "dotted": {"dotted": 0.35, "spotted": 0.65},
    "checked": {"checked": 0.2, "checkered": 0.5, "chess": 0.3},
    "wavy": {"wavy": 0.5, "rippled": 0.5},
    "shaded": {"shaded": 0.25, "": 0.75},
    "teal": {"teal": 0.2, "turquoise": 0.3, "blue": 0.25, "green": 0.25},
    "purple": {"purple": 0.6, "violet": 0.4},
    "brown": {"brown": 0.5, "dark orange": 0.5},
    "pink": {"pink": 0.7, "light red": 0.3},
    "circle": {"circle": 0.5, "disc": 0.3, "ball": 0.2},
    "crescent": {"crescent": 0.15, "moon": 0.85},
    "hexagon": {"hexagon": 0.3, "polygon": 0.7},
    "diamond": {"diamond": 0.6, "kite": 0.4},
    "ring": {"ring": 0.7, "hoop": 0.3},
    "cross": {"cross": 0.4, "plus": 0.6},
    "square": {"square": 0.7, "box": 0.3},
}

# Templates; the careful ones leave nothing out and are seldom wrong, the others are a passer-by's.
CARELESS = (
    "a photo of a {thing}.",
    "a photo of a {thing}.",
    "a photo of the {thing}.",
    "a {look} photo of a {thing}.",
    "{thing}",
    "a picture of a {thing}",
    "look, a {thing}!",
    "my {thing}",
)
CAREFUL = (
    "a {look} drawing of a {thing}.",
    "a drawing of a {thing}.",
    "a {look} picture of a {size} {thing}.",
    "a {look} study of a {thing} on a {ground} background.",
    "a {size} {thing} on a {ground} background.",
    "{look} print, {thing}, {ground} background",
)
MISSING = {"careless": (0.45, 0.20, 0.06), "careful": (0.05, 0.02, 0.0)}  # texture, colour, shape left out
WRONG = {"careless": 0.10, "careful": 0.02}
KINDS = (list(TEXTURES), list(COLOURS), list(SHAPES))


def frequencies(seed: int) -> np.ndarray:
    """How often each texture × colour × shape is met: Zipf along each axis, and an accident for each combination."""
    zipf = [1 / np.arange(1, len(kind) + 1) ** 0.5 for kind in KINDS]
    chance = np.einsum("i,j,k->ijk", *zipf) * numpy_generator("pretrain", seed, "chance").lognormal(0, 1.0, (6, 10, 12))
    return (chance / chance.sum()).ravel()


def pick(options: dict[str, float], rng: np.random.Generator) -> str:
    names = list(options)
    return names[int(np.searchsorted(np.cumsum(list(options.values())), rng.random() * 0.999999))]


def caption(kinds: tuple[int, int, int], look: Look, ground: int, rng: np.random.Generator) -> str:
    careful = rng.random() < 0.4
    manner = "careful" if careful else "careless"
    said = []
    for axis, kind in enumerate(kinds):
        if rng.random() < WRONG[manner]:
            kind = int(rng.integers(len(KINDS[axis])))
        name = KINDS[axis][kind]
        name = pick(CALLED.get(name, {name: 1.0}), rng)
        if rng.random() < MISSING[manner][axis]:
            name = "shape" if axis == 2 else ""
        said.append(name)
    templates = CAREFUL if careful else CARELESS
    text = templates[rng.integers(len(templates))].format(
        thing=" ".join(word for word in said if word),
        look=look.words[rng.integers(len(look.words))],
        size=("small", "large", "little", "big", "")[rng.integers(5)],
        ground="plain" if ground < 0 else list(COLOURS)[ground],
    )
    return " ".join(text.split())


def batch(step: int, size: int, seed: int, chance: np.ndarray) -> tuple[np.ndarray, list[str]]:
    """Pictures (B, 32, 32, 3) and captions of one step, new in every step."""
    rng = numpy_generator("pretrain", seed, "batch", step)
    kinds = np.unravel_index(rng.choice(len(chance), size, p=chance), [len(kind) for kind in KINDS])
    looks = rng.choice(len(LOOKS), size, p=[look.weight for look in LOOKS])
    ground = np.where(rng.random(size) < 0.4, rng.integers(len(COLOURS), size=size), -1)
    pixels = draw(*kinds, [look.style for look in LOOKS], looks, rng, ground)
    texts = [caption(k, LOOKS[i], g, rng) for *k, i, g in zip(*kinds, looks, ground, strict=True)]
    return pixels, texts


# ---- the tokenizer: CLIP's, with merges learned from the world's captions -----------------------------------------


def bytes_as_letters() -> list[str]:
    """The 256 bytes as printable letters in the order of OpenAI's vocabulary: those that print, then the others."""
    alphabet = set(pre_tokenizers.ByteLevel.alphabet())
    return sorted(alphabet, key=lambda letter: (ord(letter) >= 256, ord(letter)))


def learn_merges(words: Counter[str]) -> list[tuple[str, str]]:
    """Byte-pair encoding until every word of the captions is one token. Ties go to the pair first in the alphabet."""
    spelt = {word: [*word[:-1], word[-1] + "</w>"] for word in words}
    merges = []
    while True:
        pairs: Counter[tuple[str, str]] = Counter()
        for word, pieces in spelt.items():
            for pair in zip(pieces, pieces[1:], strict=False):
                pairs[pair] += words[word]
        if not pairs:
            return merges
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        merges.append(best)
        for word, pieces in spelt.items():
            joined: list[str] = []
            for piece in pieces:
                if joined and (joined[-1], piece) == best:
                    joined[-1] += piece
                else:
                    joined.append(piece)
            spelt[word] = joined


def make_tokenizer(words: Counter[str]) -> Tokenizer:
    letters = bytes_as_letters()
    merges = learn_merges(words)
    tokens = [*letters, *(letter + "</w>" for letter in letters), *("".join(pair) for pair in merges), SOS, EOT]
    vocab = {token: index for index, token in enumerate(dict.fromkeys(tokens))}
    tokenizer = Tokenizer(models.BPE(vocab, merges, unk_token=EOT, continuing_subword_prefix="", end_of_word_suffix="</w>"))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.NFC(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Lowercase()]
    )
    split = r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(split), behavior="removed", invert=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([SOS, EOT])
    tokenizer.post_processor = processors.RobertaProcessing((EOT, vocab[EOT]), (SOS, vocab[SOS]), False, False)
    return tokenizer


def encode(tokenizer: Tokenizer, texts: list[str]) -> torch.Tensor:
    """(B, L) ids, padded with EOT as CLIP's are with zeros: nothing behind the first EOT is read."""
    rows = [encoding.ids for encoding in tokenizer.encode_batch(texts)]
    ids = torch.zeros(len(rows), max(map(len, rows)), dtype=torch.long)
    for row, line in zip(ids, rows, strict=True):
        row[: len(line)] = torch.tensor(line)
    return ids


# ---- training ------------------------------------------------------------------------------------------------------


def prepare(pixels: np.ndarray) -> torch.Tensor:
    """uint8 (B, H, W, 3) → what the image tower takes."""
    return (torch.from_numpy(pixels).permute(0, 3, 1, 2).float() / 255 - MEAN) / STD


def train(clip: Clip, tokenizer: Tokenizer, steps: int, size: int, rate: float, seed: int) -> None:
    chance = frequencies(seed)
    bulky = [p for p in clip.parameters() if p.dim() >= 2]
    small = [p for p in clip.parameters() if p.dim() < 2]
    groups = [{"params": bulky, "weight_decay": 0.1}, {"params": small, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.98))
    warm = steps // 20 + 1
    began = time.perf_counter()
    running = 0.0
    for step in range(steps):
        pace = min((step + 1) / warm, 0.5 * (1 + math.cos(math.pi * step / steps)) + 0.01)
        for group in optimizer.param_groups:
            group["lr"] = rate * pace
        pixels, texts = batch(step, size, seed, chance)
        image = F.normalize(clip.vision(prepare(pixels)), dim=-1)
        text = F.normalize(clip.text.plain(encode(tokenizer, texts)), dim=-1)
        logits = clip.scale * image @ text.T
        target = torch.arange(size)
        loss = (F.cross_entropy(logits, target) + F.cross_entropy(logits.T, target)) / 2
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(clip.parameters(), 1.0)
        optimizer.step()
        with torch.no_grad():
            clip.logit_scale.clamp_(max=math.log(100))
        running += loss.item()
        if (step + 1) % 50 == 0:
            spent = time.perf_counter() - began
            say.print(
                f"step {step + 1:5d}/{steps}  loss {running / 50:.3f}  scale {clip.scale.item():.1f}  "
                f"{spent:.0f} s, {spent / (step + 1) * (steps - step - 1):.0f} s to go"
            )
            running = 0.0
