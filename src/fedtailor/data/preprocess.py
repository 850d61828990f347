"""Pictures to pixels, (H, W, 3) uint8 → (3, S, S) float.

`clip`   what CLIP was trained with: bicubic resize of the shorter side, centre crop, the checkpoint's mean and std.
`paper`  what CAPT's and FedPuReL's codes do, which depends on the dataset: its loader says so (PaperPreprocess).
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from ..base.errors import unknown
from .paper import AS_CLIP, PaperPreprocess, Pixels, Resize, Triple


@dataclass(frozen=True)
class Preprocess:
    """A transform by its settings. Its repr is part of the cache's key, so every setting is in it."""

    size: int
    mean: Triple
    std: Triple
    resize: Resize = "bicubic"
    augment: bool = False  # random resized crop and flip, in training only

    def __call__(self, picture: Pixels, rng: torch.Generator | None = None) -> Tensor:
        """With a generator, and if this transform augments, a random view; else the one deterministic view."""
        square = (self.size, self.size)
        if self.resize == "late":
            return F.interpolate(self.normalise(picture)[None], square, mode="bilinear", antialias=True)[0]
        image = Image.fromarray(picture)
        if self.augment and rng is not None:
            image = random_view(image, self.size, rng)
        elif self.resize == "bilinear":
            image = image.resize(square, Image.Resampling.BILINEAR)
        else:
            image = centre(image, self.size)
        return self.normalise(np.asarray(image))

    def normalise(self, picture: Pixels) -> Tensor:
        x = torch.from_numpy(np.array(picture)).permute(2, 0, 1).float() / 255
        mean, std = (torch.tensor(t)[:, None, None] for t in (self.mean, self.std))
        return (x - mean) / std


STRIP = 1000  # times as long as it is wide


def centre(image: Image.Image, size: int) -> Image.Image:
    short = min(image.size)
    if max(image.size) > STRIP * short:  # whose ends are cut off below: to enlarge them first may take gigabytes
        left, top = (max((side - 4 * short) // 2, 0) for side in image.size)
        image = image.crop((left, top, image.width - left, image.height - top))
    width, height = (size * side // short for side in image.size)
    image = image.resize((width, height), Image.Resampling.BICUBIC)
    left, top = round((width - size) / 2), round((height - size) / 2)
    return image.crop((left, top, left + size, top + size))


def random_view(image: Image.Image, size: int, rng: torch.Generator) -> Image.Image:
    """A random part of 8–100% of the area at an aspect of 3/4–4/3, resized; mirrored half the time."""
    width, height = image.size

    def uniform(low: float, high: float) -> float:
        return low + (high - low) * torch.rand((), generator=rng).item()

    for _ in range(10):  # a draw that doesn't fit is drawn again; ten misses are an extreme picture
        area, aspect = width * height * uniform(0.08, 1.0), math.exp(uniform(math.log(3 / 4), math.log(4 / 3)))
        w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < w <= width and 0 < h <= height:
            left, top = int(uniform(0, width - w + 1)), int(uniform(0, height - h + 1))
            break
    else:  # the largest central part of an allowed aspect
        w, h = min(width, round(height * 4 / 3)), min(height, round(width * 4 / 3))
        left, top = (width - w) // 2, (height - h) // 2
    # Cropped first, so that nothing from outside the box blends in.
    view = image.crop((left, top, left + w, top + h)).resize((size, size), Image.Resampling.BICUBIC)
    return view.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if uniform(0, 1) < 0.5 else view


def preprocess(preset: str, paper: PaperPreprocess, size: int, mean: Triple, std: Triple) -> Preprocess:
    """The transform of a preset for a dataset (`paper`) and a checkpoint (size, mean, std)."""
    presets = {"clip": AS_CLIP, "paper": paper}
    if preset not in presets:
        raise unknown("preprocessing", preset, presets)
    chosen = presets[preset]
    return Preprocess(size, chosen.mean or mean, chosen.std or std, chosen.resize, chosen.augment)
