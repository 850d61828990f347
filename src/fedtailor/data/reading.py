"""Every picture of a dataset, read once: what cannot be read, and a dataset without that."""

import hashlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np

from ..base.errors import UserError
from ..base.progress import ProgressFn
from .dataset import Dataset, FileImages, Images, Split
from .pictures import BrokenPicture


@dataclass(frozen=True)
class Seen:
    """A picture that was read, or could not be."""

    split: str
    index: int
    site: int
    name: str
    digest: bytes  # of its pixels
    side: int  # the shorter one, in pixels, as it is read
    error: str


def read_all(dataset: Dataset, progress: ProgressFn | None = None) -> Iterator[Seen]:
    """Every picture of both splits, in order, a few at a time."""
    places = [(name, split, i) for name, split in parts_of(dataset) for i in range(len(split))]

    def look(place: tuple[str, Split, int]) -> Seen:
        name, split, index = place
        site = -1 if split.sites is None else int(split.sites[index])
        images, digest, side, told = split.images, b"", 0, ""
        try:
            pixels = images.read(index)
            side = min(pixels.shape[:2])
            digest = hashlib.blake2b(repr(pixels.shape).encode() + pixels.tobytes(), digest_size=16).digest()
        except BrokenPicture as error:
            told = f"{error.path}: {error.reason}"
        path = images.paths[index] if isinstance(images, FileImages) else ""
        return Seen(name, index, site, path, digest, side, told)

    pool = ThreadPoolExecutor()
    try:
        for done, one in enumerate(pool.map(look, places), 1):
            if progress:
                progress("reading images", done, len(places))
            yield one
    finally:  # Ctrl-C does not wait for what is left
        pool.shutdown(wait=False, cancel_futures=True)


def parts_of(dataset: Dataset) -> tuple[tuple[str, Split], ...]:
    return ("train", dataset.train), ("test", dataset.test)


def without_broken(dataset: Dataset, progress: ProgressFn | None = None) -> Dataset:
    """The dataset without pictures that cannot be read; it tells which."""
    broken = [one for one in read_all(dataset, progress) if one.error]
    if not broken:
        return dataset
    train, test = (
        split.subset(np.delete(np.arange(len(split)), [one.index for one in broken if one.split == name]))
        for name, split in parts_of(dataset)
    )
    if len(dataset.train) and not len(train):
        raise UserError(f"none of the {len(dataset.train)} training pictures can be read; the first: {broken[0].error}")
    first = ", ".join(one.name for one in broken[:3]) + (", …" if len(broken) > 3 else "")
    note = f"{len(broken)} pictures cannot be read and are left out ({first})"
    return replace(dataset, train=train, test=test, broken=len(broken), notes=(*dataset.notes, note))


def few_broken(error: BrokenPicture, images: Images) -> UserError:
    """An error that names the first few of the pictures that cannot be opened, not just the one that ended the work."""
    if not isinstance(images, FileImages):
        return error
    others = (path for path in images.unopenable() if path != error.path)
    names = [f"{error.path} ({error.reason})", *map(str, islice(others, 2))]
    which = f"the picture {names[0]}" if len(names) == 1 else f"these pictures, and maybe more: {', '.join(names)}"
    todo = "replace or remove what is broken, or go on without: data.broken=skip"
    return UserError(f"cannot read {which}; {todo}")
