"""The pictures that the lab's CLIPs may learn from: real ones, and none that a lab federation trains or is tested on.

    Tiny-ImageNet          all 100,000 training pictures, at 32 pixels
    CIFAR-10, CIFAR-100    training pictures that neither the long tail nor the balanced share keeps
    Fashion-MNIST          the same, a few hundred of each class

What a federation keeps of a class are the first pictures of one shuffle (`fedtailor.data.groups.thin`), so a long tail
at imbalance 100 and a balanced share of BALANCED pictures a class are both left alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fedtailor.base.rng import numpy_generator
from fedtailor.data import open_dataset
from fedtailor.data.dataset import ArrayImages, Dataset, by_label
from fedtailor.data.groups import profile, thin
from fedtailor.data.preprocess import centre

SIDE = 32
IMBALANCE, DATA_SEED = 100.0, 1  # of the federations: data.imbalance and data.seed as they are by default
BALANCED = {"cifar10": 1000, "cifar100": 100, "fashion-mnist": 1000}  # of a class, for federations without a tail
MOST = {"cifar10": 5000, "cifar100": 500, "fashion-mnist": 600}  # of a class, for us


@dataclass(frozen=True)
class Pool:
    pixels: NDArray[np.uint8]  # (N, 32, 32, 3)
    source: NDArray[np.int64]  # (N,) which of `names`
    label: NDArray[np.int64]  # (N,) class within the source
    names: dict[str, tuple[str, ...]]  # classes of each source
    synonyms: tuple[tuple[str, ...], ...]  # of Tiny-ImageNet's classes, the name first
    coarse: tuple[int, ...]  # super-classes of CIFAR-100's classes


def pool(root: Path, every: int = 1) -> Pool:
    """All of it, or every so many pictures, to see in a minute whether all works."""
    tiny = np.load(root / "tiny-imagenet32.npz", allow_pickle=False)
    parts = [(tiny["images"], tiny["labels"])]
    names = {"tiny-imagenet": tuple(tiny["names"].tolist())}
    coarse: tuple[int, ...] = ()
    for name in MOST:
        dataset = open_dataset(name, root)
        ours = left_over(dataset)
        names[name] = dataset.classes
        coarse = coarse if dataset.coarse is None else tuple(dataset.coarse.tolist())
        parts.append((pixels_of(dataset)[ours], dataset.train.labels[ours]))
    parts = [(pixels[::every], labels[::every]) for pixels, labels in parts]
    return Pool(
        np.concatenate([as_32(pixels) for pixels, _ in parts]),
        np.repeat(np.arange(len(parts)), [len(labels) for _, labels in parts]),
        np.concatenate([labels.astype(np.int64) for _, labels in parts]),
        names,
        tuple(tuple(word.strip() for word in words.split(",")) for words in tiny["synonyms"].tolist()),
        coarse,
    )


def left_over(dataset: Dataset) -> NDArray[np.int64]:
    """Training pictures that no federation of the lab keeps."""
    labels, classes = dataset.train.labels, len(dataset.classes)
    tail = profile(len(labels) / classes, classes, IMBALANCE, dataset.order)
    taken = thin(labels, np.maximum(tail, BALANCED[dataset.name]), numpy_generator(DATA_SEED, "longtail"))
    free = np.setdiff1d(np.arange(len(labels)), taken)
    members = by_label(labels[free], classes)
    return np.sort(np.concatenate([free[which[: MOST[dataset.name]]] for which in members]))


def pixels_of(dataset: Dataset) -> NDArray[np.uint8]:
    assert isinstance(dataset.train.images, ArrayImages)
    return dataset.train.images.pixels


def as_32(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """(N, H, W, 3) → (N, 32, 32, 3), resized as for any CLIP of that size."""
    if pixels.shape[1] == SIDE:
        return pixels
    return np.stack([np.asarray(centre(Image.fromarray(picture), SIDE)) for picture in pixels])
