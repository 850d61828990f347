"""A backdoor: bad clients teach the model that a mark in the corner of a picture means one class, whatever it shows.

After Bagdasaryan et al., How To Backdoor Federated Learning, AISTATS 2020: a part of their pictures bears the mark and
the target's label, the rest is honest, and their updates may be scaled up.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from pydantic import Field

from ..data.dataset import Images, Indices, Split
from ..data.paper import Pixels
from .flip_labels import joined, known_labels
from .updates import Scale


class Backdoor(Scale):
    """some of a bad client's pictures have a mark in the corner and the target's label"""

    times: float = Field(1.0, gt=0, allow_inf_nan=False, description="what the update is multiplied by")
    target: int = Field(0, ge=0, description="the class that the mark shall mean, by number")
    part: float = Field(0.5, gt=0, le=1, description="of a bad client's pictures that are marked")
    size: float = Field(0.15, gt=0, le=1, description="of the mark: a white square, as a part of the shorter side")

    def poisoned(self, train: Split, bad: Sequence[Indices], classes: int) -> Split:
        labels = known_labels(train)
        marked = joined([part[: round(self.part * len(part))] for part in bad])
        labels[marked] = min(self.target, classes - 1)
        return replace(train, images=Marked(train.images, frozenset(marked.tolist()), self.size), labels=labels)

    def triggered(self, tests: Images) -> Images:
        return Marked(tests, frozenset(range(len(tests))), self.size)


@dataclass(frozen=True, eq=False)
class Marked:
    """Pictures, some of which have a white square in the lower right corner."""

    images: Images
    which: frozenset[int]
    size: float

    def __len__(self) -> int:
        return len(self.images)

    def read(self, index: int) -> Pixels:
        pixels = self.images.read(index)
        if index not in self.which:
            return pixels
        side = max(1, round(self.size * min(pixels.shape[:2])))
        pixels = pixels.copy()
        pixels[-side:, -side:] = 255
        return pixels

    @cached_property
    def fingerprint(self) -> str:
        told = repr((self.images.fingerprint, sorted(self.which), self.size))
        return hashlib.sha256(told.encode()).hexdigest()

    def subset(self, indices: Indices) -> "Marked":
        which = frozenset(np.flatnonzero(np.isin(indices, [*self.which])).tolist())
        return Marked(self.images.subset(indices), which, self.size)
