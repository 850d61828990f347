"""What a dataset is: pictures read one by one, labels (or none), class names, and the facts a paper's setup needs."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from .paper import AS_CLIP, PaperPreprocess, Pixels
from .pictures import BROKEN, DICOM, BrokenPicture, open_picture, read_picture, unreachable

Indices = NDArray[np.int64]
Mask = NDArray[np.bool_]
Rng = np.random.Generator | np.random.RandomState  # the legacy one replays published constructions draw by draw

UNKNOWN = -1  # in place of a label, where nobody has given one


class Readable(Protocol):
    def read(self, index: int) -> Pixels: ...  # (H, W, 3) RGB


class Images(Readable, Protocol):
    """Random access to pictures."""

    def __len__(self) -> int: ...
    def subset(self, indices: Indices) -> Images: ...
    @property
    def fingerprint(self) -> str: ...  # changes when the pictures or their order change; part of the cache key


@dataclass(frozen=True, eq=False)
class ArrayImages:
    """Pictures in memory: uint8 (N, H, W, 3)."""

    pixels: Pixels

    def __post_init__(self) -> None:
        if self.pixels.ndim != 4 or self.pixels.shape[-1] != 3 or self.pixels.dtype != np.uint8:
            raise ValueError(f"pixels must be uint8 (N, H, W, 3), got {self.pixels.dtype} {self.pixels.shape}")

    def __len__(self) -> int:
        return len(self.pixels)

    def read(self, index: int) -> Pixels:
        return np.asarray(self.pixels[index])

    @cached_property
    def fingerprint(self) -> str:
        digest = hashlib.sha256(repr(self.pixels.shape).encode())
        digest.update(np.ascontiguousarray(self.pixels).data)
        return digest.hexdigest()

    def subset(self, indices: Indices) -> ArrayImages:
        return ArrayImages(self.pixels[indices])


@dataclass(frozen=True, eq=False)
class FileImages:
    """Pictures in files, opened when read; the paths are relative to `root`."""

    root: Path
    paths: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.paths)

    def read(self, index: int) -> Pixels:
        return read_picture(self.root / self.paths[index])

    def unopenable(self) -> Iterator[Path]:
        """Pictures that are not even begun like one; a quick look, which finds no damage further on."""
        for name in self.paths:
            if name.lower().endswith(DICOM):
                continue  # not Pillow's
            try:
                open_picture(self.root / name).close()
            except BROKEN:
                yield self.root / name

    @cached_property
    def fingerprint(self) -> str:
        # Size and time stand in for content: reading a large folder would cost more than the cache saves.
        digest = hashlib.sha256(b"files, as pictures.py reads them")
        for path in self.paths:
            try:
                stat = (self.root / path).stat()
            except (OSError, ValueError) as error:  # not there, or no path at all
                raise BrokenPicture(self.root / path, unreachable(error)) from error
            digest.update(repr((path, stat.st_size, stat.st_mtime_ns)).encode())
        return digest.hexdigest()

    def subset(self, indices: Indices) -> FileImages:
        return FileImages(self.root, tuple(self.paths[int(index)] for index in indices))


@dataclass(frozen=True, eq=False)
class Split:
    """Training or test pictures."""

    images: Images
    labels: Indices | None  # None: nobody has labelled them; UNKNOWN: nobody has labelled this one
    sites: Indices | None = None  # where they come from, if known
    groups: Indices | None = None  # which belong together (of one patient, say) and must not be trained and tested on

    def __post_init__(self) -> None:
        for what, values in (("labels", self.labels), ("sites", self.sites), ("groups", self.groups)):
            if values is not None and (values.dtype != np.int64 or values.shape != (len(self),)):
                raise ValueError(f"{what} must be int64, one per picture, got {values.dtype} {values.shape}")
            least = UNKNOWN if what == "labels" else 0
            if values is not None and len(values) and values.min() < least:
                raise ValueError(f"{what} must be {least} or more, got {values.min()}")

    def __len__(self) -> int:
        return len(self.images)

    @property
    def partly(self) -> bool:
        """Whether some pictures have a label and others have none."""
        return self.labels is not None and bool((self.labels == UNKNOWN).any())

    def subset(self, indices: Indices) -> Split:
        numbers = (self.labels, self.sites, self.groups)
        return Split(self.images.subset(indices), *(None if values is None else values[indices] for values in numbers))


@dataclass(frozen=True, eq=False)
class Dataset:
    name: str
    classes: tuple[str, ...]
    template: str  # "a photo of a {}."
    train: Split
    test: Split
    coarse: Indices | None = None  # (C,) super-class of each class
    order: tuple[int, ...] | None = None  # classes from head to tail for a long tail; None: by index
    paper: PaperPreprocess = AS_CLIP  # how its papers' codes prepare it
    site_names: tuple[str, ...] = ()  # of the numbers in a split's sites, if they have names
    broken: int = 0  # pictures that could not be read and were left out
    notes: tuple[str, ...] = ()  # what was decided in reading it that its user did not say

    def __post_init__(self) -> None:
        C = len(self.classes)
        if C == 0:
            raise ValueError(f"{self.name}: no classes")
        if self.template.count("{}") != 1:
            raise ValueError(f"{self.name}: the template must hold one {{}}, got {self.template!r}")
        for what, split in (("train", self.train), ("test", self.test)):
            if split.labels is not None and len(split.labels) and split.labels.max() >= C:
                raise ValueError(f"{self.name}: {what} label {split.labels.max()} but only {C} classes")
        if self.coarse is not None and self.coarse.shape != (C,):
            raise ValueError(f"{self.name}: coarse must be ({C},), got {self.coarse.shape}")
        if self.order is not None and sorted(self.order) != list(range(C)):
            raise ValueError(f"{self.name}: order must hold every class once, got {self.order}")


def by_label(labels: Indices, classes: int) -> list[Indices]:
    """The indices of each class's pictures, ascending."""
    return [np.flatnonzero(labels == label) for label in range(classes)]


def histogram(labels: Indices, classes: int) -> Indices:
    """(C,) how often each class occurs; pictures without a label are in none."""
    return np.bincount(labels[labels != UNKNOWN], minlength=classes).astype(np.int64)
