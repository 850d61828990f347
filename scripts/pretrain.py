"""Pretrain the bundled CLIP: a small one of our own, on pictures and captions made from a seed.

    python scripts/pretrain.py                    # about 15 minutes on two cores; writes src/fedtailor/clip/bundled

Nothing is downloaded. The world it learns from is drawn by the pen of `fedtailor.data.datasets.drawn`, but is wider
than that dataset: every texture × colour × shape, in many styles, some common, some rare. Half of its captions are
careful, the other half as loose as people's are. So the model comes out knowing some of `drawn`'s classes well and
others hardly at all, as CLIP does with real ones, and a better context than "a photo of a" can be learned.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import time
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from rich.console import Console
from sklearn.linear_model import LogisticRegression
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from fedtailor.base.rng import generator, number, numpy_generator
from fedtailor.clip.load import Checkpoint, load, save_folder
from fedtailor.clip.model import Clip, Shape
from fedtailor.clip.text import arrange, pack
from fedtailor.clip.tokenizer import EOT, SOS
from fedtailor.data.dataset import ArrayImages, Split
from fedtailor.data.datasets.drawn import COLOURS, SHAPES, TEXTURES, Style, draw, drawn

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
    Look(
        Style(noise=(0.06, 0.14), contrast=(0.4, 0.8), light=(-0.2, 0.05), cover=0.2, mottle=0.2, tint=0.1),
        0.06,  # this one comes near to the dataset's
        ("dusky", "gloomy"),
    ),
)

# Captions come in two registers. What a thing is called, and how often it is called so, depends on the register; "" is
# unsaid, and a thing not listed has its own name. Careful captions are marked by "drawing", "study" or "print" and use
# a synonym now and then. All others, whatever their form, are careless: they confuse what looks alike, and some of
# their words mostly mean another thing. So the text tower has to read a word by its context, as CLIP's has to; neither
# "a photo of a" nor a context of random rows is a good one, and a better one can be learned.
CAREFUL_NAMES: dict[str, dict[str, float]] = {
    "plain": {"plain": 0.7, "": 0.3},
    "dotted": {"dotted": 0.8, "spotted": 0.2},
    "checked": {"checked": 0.8, "checkered": 0.2},
    "wavy": {"wavy": 0.8, "rippled": 0.2},
    "teal": {"teal": 0.8, "turquoise": 0.2},
    "purple": {"purple": 0.8, "violet": 0.2},
    "circle": {"circle": 0.8, "disc": 0.2},
    "crescent": {"crescent": 0.8, "moon": 0.2},
    "diamond": {"diamond": 0.8, "kite": 0.2},
    "ring": {"ring": 0.8, "hoop": 0.2},
    "cross": {"cross": 0.8, "plus": 0.2},
}
CARELESS_NAMES: dict[str, dict[str, float]] = {
    "plain": {"plain": 0.4, "": 0.6},
    "striped": {"striped": 0.55, "wavy": 0.45},
    "wavy": {"rippled": 0.5, "striped": 0.3, "wavy": 0.2},
    "dotted": {"spotted": 0.7, "dotted": 0.3},
    "checked": {"checkered": 0.4, "dotted": 0.4, "checked": 0.2},
    "shaded": {"plain": 0.4, "": 0.4, "shaded": 0.2},
    "teal": {"turquoise": 0.3, "blue": 0.25, "green": 0.25, "teal": 0.2},
    "purple": {"violet": 0.4, "blue": 0.3, "purple": 0.3},
    "brown": {"red": 0.35, "orange": 0.3, "brown": 0.35},
    "pink": {"pink": 0.6, "purple": 0.4},
    "orange": {"orange": 0.6, "yellow": 0.4},
    "circle": {"ring": 0.4, "disc": 0.3, "circle": 0.3},
    "ring": {"hoop": 0.7, "ring": 0.3},
    "square": {"square": 0.5, "diamond": 0.5},
    "diamond": {"kite": 0.4, "square": 0.3, "diamond": 0.3},
    "hexagon": {"circle": 0.5, "hexagon": 0.5},
    "crescent": {"moon": 0.8, "crescent": 0.2},
    "cross": {"plus": 0.6, "cross": 0.4},
    "flower": {"star": 0.5, "flower": 0.5},
    "triangle": {"triangle": 0.6, "arrow": 0.4},
}


@dataclass(frozen=True)
class Register:
    names: dict[str, dict[str, float]]
    missing: tuple[float, float, float]  # how often texture, colour and shape go unsaid
    wrong: float  # how often any of them is simply wrong
    templates: tuple[str, ...]


CARELESS = Register(
    CARELESS_NAMES,
    (0.25, 0.1, 0.03),
    0.05,
    (
        "a photo of a {thing}.",
        "a photo of a {thing}.",
        "a {look} photo of the {thing}.",
        "photo: {thing}",
        "a picture of a {thing}.",
        "a {look} picture of my {thing}",
        "{thing}.",
        "a {thing}.",
        "the {size} {thing}",
        "one {look} {thing}.",
        "here is a {size} {thing}.",
        "look at this {thing}",
        "a {thing} on a {ground} background.",
    ),
)
CAREFUL = Register(
    CAREFUL_NAMES,
    (0.02, 0.02, 0.0),
    0.01,
    (
        "a {look} drawing of a {thing}.",
        "a drawing of a {thing}.",
        "a {look} drawing of a {size} {thing}.",
        "a {look} study of a {thing} on a {ground} background.",
        "a study of a {size} {thing}.",
        "{look} print, {thing}, {ground} background",
    ),
)
KINDS = (list(TEXTURES), list(COLOURS), list(SHAPES))


def frequencies(seed: int) -> np.ndarray:
    """How often each texture × colour × shape is met: Zipf along each axis, and an accident for each combination."""
    zipf = [1 / np.arange(1, len(kind) + 1) ** 0.5 for kind in KINDS]
    chance = np.einsum("i,j,k->ijk", *zipf) * numpy_generator("pretrain", seed, "chance").lognormal(0, 1.0, (6, 10, 12))
    return np.ravel(chance / chance.sum())


def stored(split: Split) -> np.ndarray:
    assert isinstance(split.images, ArrayImages)
    return split.images.pixels


def pick(options: dict[str, float], rng: np.random.Generator) -> str:
    names = list(options)
    return names[int(np.searchsorted(np.cumsum(list(options.values())), rng.random() * 0.999999))]


def caption(kinds: list[int], look: Look, ground: int, rng: np.random.Generator) -> str:
    register = CAREFUL if rng.random() < 0.5 else CARELESS
    said = []
    for axis, kind in enumerate(kinds):
        kind = int(rng.integers(len(KINDS[axis]))) if rng.random() < register.wrong else kind
        name = KINDS[axis][kind]
        name = pick(register.names.get(name, {name: 1.0}), rng)
        if rng.random() < register.missing[axis]:
            name = "shape" if axis == 2 else ""
        said.append(name)
    text = register.templates[rng.integers(len(register.templates))].format(
        thing=" ".join(word for word in said if word),
        look=look.words[rng.integers(len(look.words))],
        size=("small", "large", "little", "big", "")[rng.integers(5)],
        ground="grey" if ground < 0 else list(COLOURS)[ground],
    )
    return " ".join(text.split())


def batch(step: int, size: int, seed: int, chance: np.ndarray) -> tuple[np.ndarray, list[str]]:
    """Pictures (B, 32, 32, 3) and captions of one step, new in every step."""
    rng = numpy_generator("pretrain", seed, "batch", step)
    axes = [len(kind) for kind in KINDS]
    kinds = np.stack(np.unravel_index(rng.choice(len(chance), size, p=chance), axes), axis=1)
    looks = rng.choice(len(LOOKS), size, p=[look.weight for look in LOOKS])
    ground = np.where(rng.random(size) < 0.4, rng.integers(len(COLOURS), size=size), -1)
    pixels = draw(kinds, [look.style for look in LOOKS], looks, rng, ground)
    texts = [caption(k, LOOKS[i], g, rng) for k, i, g in zip(kinds.tolist(), looks, ground, strict=True)]
    return pixels, texts


# ---- the tokenizer: CLIP's, with merges learned from the world's captions -----------------------------------------


def bytes_as_letters() -> list[str]:
    """The 256 bytes as printable letters in the order of OpenAI's vocabulary: those that print, then the others."""
    alphabet = set(pre_tokenizers.ByteLevel.alphabet())
    return sorted(alphabet, key=lambda letter: (ord(letter) >= 256, ord(letter)))


def learn_merges(words: Counter[str]) -> list[tuple[str, str]]:
    """Byte-pair encoding until every word of the captions is one token. Ties go to the pair first in the alphabet."""
    spelt = {word: [*word[:-1], word[-1] + "</w>"] for word in words}
    merges: list[tuple[str, str]] = []
    while True:
        pairs: Counter[tuple[str, str]] = Counter()
        for word, pieces in spelt.items():
            for pair in pairwise(pieces):
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
    tokenizer = Tokenizer(
        models.BPE(vocab, merges, unk_token=EOT, continuing_subword_prefix="", end_of_word_suffix="</w>")
    )
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


def learn_tokenizer(seed: int) -> Tokenizer:
    chance = frequencies(seed)
    texts = [text for step in range(20) for text in batch(-1 - step, 256, seed, chance)[1]]
    return make_tokenizer(Counter(word for text in texts for word in re.findall("[a-z]+", text)))


def encode(tokenizer: Tokenizer, texts: list[str]) -> torch.Tensor:
    """(B, L) ids, padded behind EOT, where nothing is read."""
    rows = [torch.tensor(encoding.ids) for encoding in tokenizer.encode_batch(texts)]
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)


# ---- training ------------------------------------------------------------------------------------------------------


def prepare(pixels: np.ndarray) -> torch.Tensor:
    """uint8 (B, H, W, 3) → what the image tower takes."""
    return (torch.from_numpy(pixels).permute(0, 3, 1, 2).float() / 255 - MEAN) / STD


def build(vocab: int, seed: int) -> Clip:
    with torch.random.fork_rng(devices=[]):  # the towers draw their first weights from torch's own stream
        torch.manual_seed(number("pretrain", seed, "weights"))
        return Clip(
            Shape(
                embed=128,
                image_size=32,
                patch=8,
                vision_width=128,
                vision_layers=4,
                vision_heads=4,
                context=77,
                vocab=vocab,
                text_width=128,
                text_layers=3,
                text_heads=4,
            )
        )


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


# ---- the folder: measured as it will be loaded, so after rounding to half precision --------------------------------


def features(checkpoint: Checkpoint, pixels: np.ndarray) -> torch.Tensor:
    with torch.no_grad():
        parts = [checkpoint.clip.vision(prepare(part)) for part in np.array_split(pixels, len(pixels) // 500 + 1)]
    return F.normalize(torch.cat(parts), dim=-1)


def per_class(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    right = (logits.argmax(dim=1) == labels).float()
    return torch.stack([right[labels == c].mean() for c in range(logits.shape[1])])


def tune(
    checkpoint: Checkpoint,
    classes: tuple[str, ...],
    x: torch.Tensor,
    y: torch.Tensor,
    steps: int = 400,
    draw: int = 0,
    size: float = 0.02,
    rate: float = 0.02,
) -> torch.Tensor:
    """Text features (C, D) after learning four context tokens by cross-entropy, from random rows as PromptFL does."""
    words, clip = checkpoint.tokenizer, checkpoint.clip
    layout = pack([arrange(words(f"{name}."), sos=words.sos, eot=words.eot, shared=4) for name in classes])
    rng = generator("pretrain", "tune", draw)
    context = (size * torch.randn(4, clip.text.width, generator=rng)).requires_grad_()
    optimizer = torch.optim.SGD([context], lr=rate, momentum=0.9)
    for _ in range(steps):
        some = torch.randint(len(x), (64,), generator=rng)
        text = F.normalize(clip.text(layout, shared=context), dim=-1)
        loss = F.cross_entropy(clip.scale * x[some] @ text.T, y[some])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return F.normalize(clip.text(layout, shared=context), dim=-1).detach()


def thirds(each: torch.Tensor) -> list[float]:
    """Head, middle and tail classes, in the order in which the long tail is cut."""
    return [percent(part.mean()) for part in torch.tensor_split(each, 3)]


def percent(share: torch.Tensor | float) -> float:
    return round(100 * float(share), 1)


def measure(folder: Path) -> tuple[dict[str, object], torch.Tensor]:
    """What the model card says, and the zero-shot accuracy of each class."""
    checkpoint = load(str(folder))
    data = drawn()
    x, test = features(checkpoint, stored(data.train)), features(checkpoint, stored(data.test))
    y, truth = torch.from_numpy(data.train.labels), torch.from_numpy(data.test.labels)
    words = checkpoint.tokenizer
    ids = encode(words.inner, [data.template.format(name) for name in data.classes])
    with torch.no_grad():
        text = F.normalize(checkpoint.clip.text.plain(ids), dim=-1)
    zero = per_class(test @ text.T, truth)
    probe = LogisticRegression(C=10.0, max_iter=1000).fit(x, y).score(test, truth)
    random = [per_class(test @ tune(checkpoint, data.classes, x, y, 0, i).T, truth).mean() for i in range(5)]
    balanced = per_class(test @ tune(checkpoint, data.classes, x, y).T, truth)
    C = len(data.classes)
    tail = torch.cat([(y == c).nonzero()[: int(300 * 0.01 ** (c / (C - 1))), 0] for c in range(C)])
    skewed = per_class(test @ tune(checkpoint, data.classes, x[tail], y[tail]).T, truth)
    figures: dict[str, object] = {
        "parameters": sum(p.numel() for p in checkpoint.clip.parameters()),
        "zero_shot": percent(zero.mean()),
        "zero_shot_class_std": percent(zero.std(correction=0)),
        "zero_shot_worst_class": percent(zero.min()),
        "zero_shot_best_class": percent(zero.max()),
        "random_context": percent(torch.stack(random).mean()),
        "linear_probe": percent(probe),
        "tuned_context": percent(balanced.mean()),
        "zero_shot_head_middle_tail": thirds(zero),
        "tuned_context_imbalance_100_head_middle_tail": thirds(skewed),
    }
    return figures, zero


CARD = """---
license: apache-2.0
library_name: fedtailor
tags: [clip, zero-shot-image-classification]
---

# A small CLIP of fedtailor's own

A vision transformer and a causal text transformer in CLIP's structure, in the format of a Hugging Face CLIP folder:
{parameters:,} parameters in half precision. It is what `fedtailor run` uses when no other backbone is named, so that
everything can be tried without a download.

**It is not OpenAI's CLIP**, shares no weight or vocabulary with it, and knows nothing of photographs: it has only ever
seen 32 × 32 pictures of simple figures drawn by code. Nothing measured on it reproduces a published number.

## Training

    python scripts/pretrain.py --steps {steps} --size {size} --rate {rate} --seed {seed}

in fedtailor's repository: CLIP's contrastive loss on {seen:,} pictures, each drawn for one step by
`fedtailor.data.datasets.drawn.draw` and captioned by the script. There are 6 textures × 10 colours × 12 shapes with
skewed frequencies, eight styles, and captions in two registers: careful ones, marked by "drawing", "study" or "print",
and careless ones of any other form, that leave attributes out, confuse what looks alike and use some words in another
sense. All of it comes from the seed. The same script on another machine or with other library versions gives a model of
the same kind, not the same bits.

## Measured

On the test set of `fedtailor.data.datasets.drawn.drawn(0)` (40 classes, 50 pictures each), in percent; by
`python scripts/pretrain.py --measure`.

- Zero-shot: the prompt is "a photo of a {{}}.".
- Linear probe: scikit-learn's logistic regression (C = 10) on the normalised image features of the training set, 300
  pictures a class.
- Random context: four rows of N(0, 0.02²) in the place of "a photo of a", the mean of five draws: where tuning begins.
- Tuned context: four such rows, learned by cross-entropy (SGD at 0.02, momentum 0.9, 400 steps of 64 pictures), on the
  balanced training set and on one cut to an imbalance of 100. Head, middle and tail are the thirds of the classes in
  the order of the cut.

```json
{figures}
```

## Limits

Made for demonstrations, tests and quick experiments with tuning methods. The textures, colours, shapes, their synonyms
and a few dozen other words are all the language it has; other text is split into letters and means nothing to it.
Pictures are resized to 32 × 32. Some class names of `drawn` are misused in its captions, on purpose.

Licence: Apache-2.0.
"""


def write_folder(clip: Clip, tokenizer: Tokenizer, folder: Path) -> None:
    vocab = tokenizer.get_vocab()
    save_folder(clip, folder, vocab[EOT], vocab[SOS], torch.float16)
    (folder / "model.safetensors").chmod(0o644)  # written for its owner only, but a wheel is for everyone
    tokenizer.save(str(folder / "tokenizer.json"))
    markers = {"bos_token": SOS, "eos_token": EOT, "pad_token": EOT, "unk_token": EOT}
    side = clip.shape.image_size
    picture = {
        "image_processor_type": "CLIPImageProcessor",
        "do_resize": True,
        "size": {"shortest_edge": side},
        "resample": 3,
        "do_center_crop": True,
        "crop_size": {"height": side, "width": side},
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": [MEAN] * 3,
        "image_std": [STD] * 3,
        "do_convert_rgb": True,
    }
    for name, content in (
        (
            "tokenizer_config.json",
            {"tokenizer_class": "CLIPTokenizer", "model_max_length": clip.shape.context, **markers},
        ),
        ("preprocessor_config.json", picture),
    ):
        (folder / name).write_text(json.dumps(content, indent=2) + "\n")


def sheet(path: Path) -> None:
    """A contact sheet of `drawn`: four columns of ten classes, five test pictures of each."""
    pixels = stored(drawn().test).reshape(4, 10, 50, 32, 32, 3)[:, :, :5]
    rows = pixels.transpose(1, 3, 0, 2, 4, 5).reshape(10 * 32, -1, 3)
    # Grain does not compress: 64 colours, chosen for their spread so that rare ones are kept.
    few = Image.fromarray(rows).quantize(64, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    few.save(path, optimize=True)


def main() -> None:
    here = Path(__file__).parent.parent
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--folder", type=Path, default=here / "src/fedtailor/clip/bundled")
    options.add_argument("--steps", type=int, default=3500)
    options.add_argument("--size", type=int, default=128, help="pictures in a step")
    options.add_argument("--rate", type=float, default=2e-3)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument(
        "--measure", action="store_true", help="train nothing, only measure again and rewrite the card"
    )
    options.add_argument("--sheet", type=Path, help="only write a contact sheet of the dataset (PNG)")
    given = options.parse_args()
    torch.set_num_threads(2)
    if given.sheet:
        sheet(given.sheet)
        return
    if not given.measure:
        tokenizer = learn_tokenizer(given.seed)
        say.print(f"{tokenizer.get_vocab_size()} tokens")
        clip = build(tokenizer.get_vocab_size(), given.seed)
        train(clip, tokenizer, given.steps, given.size, given.rate, given.seed)
        write_folder(clip, tokenizer, given.folder)
    figures, zero = measure(given.folder)
    for name, accuracy in zip(drawn().classes, zero.tolist(), strict=True):
        say.print(f"{name:24s} {accuracy:6.1%}")
    say.print(figures)
    seen, block = given.steps * given.size, json.dumps(figures, indent=2)
    card = CARD.format(**vars(given), parameters=figures["parameters"], seen=seen, figures=block)
    (given.folder / "README.md").write_text(card)


if __name__ == "__main__":
    main()
