"""Pictures to pixels, (H, W, 3) uint8 → (3, S, S) float.

`clip`   what CLIP was trained for: bicubic resize of the shorter side, centre crop, the checkpoint's mean and std.
`paper`  what CAPT's and FedPuReL's codes really do, which depends on the dataset: CIFAR is normalised by its own
         statistics and only then resized bilinearly; Fashion-MNIST is normalised by 0.5; the rest is `clip`, and in
         training a random resized crop and flip.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from ..base.errors import unknown

Triple = tuple[float, float, float]
Pixels = NDArray[np.uint8]


@dataclass(frozen=True)
class Preprocess:
    """A transform by its settings. Its repr is part of the cache's key, so every setting is in it."""

    size: int
    mean: Triple
    std: Triple
    resize: str = (
        "bicubic"  # of the shorter side, then a centre crop · "bilinear": to the square · "late": after mean/std
    )
    augment: bool = False  # random resized crop and flip, in training only

    def __call__(self, picture: Pixels, rng: torch.Generator | None = None) -> Tensor:
        """With a generator, and if this transform augments, a random view; else the one deterministic view."""
        if self.resize == "late":
            x = self.normal(to_tensor(picture))
            return F.interpolate(x[None], (self.size, self.size), mode="bilinear", antialias=True)[0]
        image = Image.fromarray(picture)
        if self.augment and rng is not None:
            image = random_view(image, self.size, rng)
        elif self.resize == "bilinear":
            image = image.resize((self.size, self.size), Image.Resampling.BILINEAR)
        else:
            image = centre(image, self.size)
        return self.normal(to_tensor(np.asarray(image)))

    def normal(self, x: Tensor) -> Tensor:
        mean, std = (torch.tensor(t)[:, None, None] for t in (self.mean, self.std))
        return (x - mean) / std


def to_tensor(picture: Pixels) -> Tensor:
    return torch.from_numpy(np.array(picture)).permute(2, 0, 1).float() / 255


def centre(image: Image.Image, size: int) -> Image.Image:
    short = min(image.size)
    width, height = (size * side // short for side in image.size)
    image = image.resize((width, height), Image.Resampling.BICUBIC)
    left, top = round((width - size) / 2), round((height - size) / 2)
    return image.crop((left, top, left + size, top + size))


def random_view(image: Image.Image, size: int, rng: torch.Generator) -> Image.Image:
    """A random part of 8–100% of the area at an aspect of 3/4–4/3, resized; mirrored half the time."""
    width, height = image.size

    def uniform(low: float, high: float) -> float:
        return low + (high - low) * torch.rand((), generator=rng).item()

    box = None
    for _ in range(10):  # a draw that doesn't fit is drawn again; ten misses are an extreme picture
        area, aspect = width * height * uniform(0.08, 1.0), math.exp(uniform(math.log(3 / 4), math.log(4 / 3)))
        w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < w <= width and 0 < h <= height:
            left, top = int(uniform(0, width - w + 1)), int(uniform(0, height - h + 1))
            box = (left, top, left + w, top + h)
            break
    if box is None:  # the largest central part of an allowed aspect
        w, h = min(width, round(height * 4 / 3)), min(height, round(width * 4 / 3))
        left, top = (width - w) // 2, (height - h) // 2
        box = (left, top, left + w, top + h)
    view = image.crop(box).resize((size, size), Image.Resampling.BICUBIC)  # nothing from outside the box blends in
    return view.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if uniform(0, 1) < 0.5 else view


CIFAR10 = ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010))
CIFAR100 = ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762))
HALF = ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))


def preprocess(preset: str, normal: str, size: int, mean: Triple, std: Triple) -> Preprocess:
    """The transform of a preset for a dataset (`normal` is the dataset's entry) and a checkpoint (size, mean, std)."""
    plain = Preprocess(size, mean, std)
    if preset == "clip":
        return plain
    if preset != "paper":
        raise unknown("preprocessing", preset, ("clip", "paper"))
    by_dataset = {
        "clip": plain,
        "clip-augmented": Preprocess(size, mean, std, augment=True),
        "cifar10": Preprocess(size, *CIFAR10, resize="late"),
        "cifar100": Preprocess(size, *CIFAR100, resize="late"),
        "fashion-mnist": Preprocess(size, *HALF, resize="bilinear"),
    }
    if normal not in by_dataset:
        raise unknown("normalisation", normal, by_dataset)
    return by_dataset[normal]
