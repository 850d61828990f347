"""Tiny datasets for the tests."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from fedtailor.data.dataset import ArrayImages, Dataset, Split

GOLDEN = Path(__file__).parents[1] / "golden"


def blank(count: int) -> ArrayImages:
    return ArrayImages(np.zeros((count, 1, 1, 3), dtype=np.uint8))


def toy(counts: Sequence[int], test_counts: Sequence[int], coarse: Sequence[int] | None = None) -> Dataset:
    """So many pictures of each class, in class order."""
    train, test = (np.repeat(np.arange(len(part)), part).astype(np.int64) for part in (counts, test_counts))
    return Dataset(
        name="toy",
        classes=tuple(f"kind {label}" for label in range(len(counts))),
        template="a photo of a {}.",
        train=Split(blank(len(train)), train),
        test=Split(blank(len(test)), test),
        coarse=None if coarse is None else np.array(coarse, dtype=np.int64),
    )


def paint(path: Path, value: int = 0, size: tuple[int, int] = (4, 3)) -> None:
    """A picture file of one grey; JPEG keeps such a picture exactly."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, (value, value, value)).save(path)


def write(path: Path, *lines: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
