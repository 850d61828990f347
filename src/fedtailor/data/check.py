"""Is a dataset complete and readable? For `fedtailor data check`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..base.errors import UserError
from . import default_root, find_source
from .dataset import histogram


@dataclass(frozen=True)
class CheckStep:
    """One step of a check: how far it is, and what it found wrong, if anything."""

    done: int
    total: int
    finding: str | None = None


def check_dataset(name: str, root: Path | None = None) -> Iterator[CheckStep]:
    """Opens the dataset as downloaded (before any thinning), counts it and reads every picture."""
    source = find_source(name)
    try:
        dataset = source.load(root or default_root())
    except UserError as error:
        yield CheckStep(0, 0, str(error))
        return
    parts = {"training": dataset.train, "test": dataset.test}
    total = sum(map(len, parts.values()))
    for (what, split), size in zip(parts.items(), source.sizes or (None, None), strict=True):
        if size is not None and len(split) != size:
            yield CheckStep(0, total, f"{name} has {len(split)} {what} pictures, as published it has {size}")
        elif len(split) == 0:
            yield CheckStep(0, total, f"{name} has no {what} pictures")
        if split.labels is not None and len(split):
            for label in np.flatnonzero(histogram(split.labels, len(dataset.classes)) == 0):
                yield CheckStep(0, total, f"no {what} picture of {dataset.classes[label]!r}")
    everything = [(split, index) for split in parts.values() for index in range(len(split))]
    for done, (split, index) in enumerate(everything, 1):
        try:
            split.images.read(index)
            yield CheckStep(done, total)
        except UserError as error:
            yield CheckStep(done, total, str(error))
