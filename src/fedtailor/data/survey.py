"""What there is of a user's own pictures: how many of what, where, and in which state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ..base.errors import UserError
from ..base.progress import ProgressFn
from .check import UNREADABLE, Checked, check
from .dataset import UNKNOWN, Dataset, Indices, histogram
from .datasets import drawn
from .datasets.layout import pictures_in
from .gather import Gathered, gather
from .groups import has_tail


@dataclass(frozen=True)
class Survey:
    """Pictures that were gathered and all read. Without `checked` they are drawn by code, and need no looking at."""

    name: str
    dataset: Dataset
    gathered: Gathered | None = None
    checked: Checked | None = None

    @cached_property
    def counts(self) -> Indices | None:
        """(C,) labelled training pictures of each class; None: there are none."""
        labels = self.dataset.train.labels
        return None if labels is None else histogram(labels, len(self.dataset.classes))

    @property
    def unlabelled(self) -> int:
        """Training pictures without a label."""
        return len(self.dataset.train) - (0 if self.counts is None else int(self.counts.sum()))

    @property
    def labelled_everywhere(self) -> bool:
        """Whether each site has training pictures with a label."""
        labels, sites = self.dataset.train.labels, self.dataset.train.sites
        if labels is None or sites is None:
            return labels is not None
        return set(np.unique(sites)) == set(np.unique(sites[labels != UNKNOWN]))

    @property
    def tail(self) -> bool:
        return self.counts is not None and has_tail(self.counts)

    @property
    def imbalance(self) -> float | None:
        """The largest class by the smallest that has pictures."""
        there = None if self.counts is None else self.counts[self.counts > 0]
        return None if there is None else float(there.max() / there.min())

    @property
    def sites(self) -> dict[str, int]:
        """Training pictures of each."""
        numbers, names = self.dataset.train.sites, self.dataset.site_names
        if numbers is None or len(np.unique(numbers)) < 2:
            return {}
        return {names[site]: int((numbers == site).sum()) for site in np.unique(numbers)}

    @property
    def unreadable(self) -> int:
        found = self.checked.findings if self.checked else []
        return sum(finding.count for finding in found if finding.what == UNREADABLE)

    @property
    def figures(self) -> bool:
        """Whether it shows nothing but what the drawn dataset has."""
        return set(self.dataset.classes) <= set(drawn.CLASSES)

    def document(self) -> dict[str, Any]:
        names = self.dataset.classes
        counts = None if self.counts is None else dict(zip(names, self.counts.tolist(), strict=True))
        return {
            "data": self.name,
            "classes": list(names),
            "train": len(self.dataset.train),
            "test": len(self.dataset.test),
            "counts": counts,
            "imbalance": None if self.imbalance is None else round(self.imbalance, 2),
            "tail": self.tail,
            "sites": self.sites,
            "unlabelled": self.unlabelled,
            "left_out": self.gathered.left_out if self.gathered else 0,
            "sides": self.checked.sides if self.checked else None,
            "check": self.checked.document() if self.checked else None,
        }


def has_pictures(folder: Path) -> bool:
    return next(pictures_in(folder), None) is not None


def survey(paths: Sequence[Path], table: Path, progress: ProgressFn | None = None) -> Survey:
    """Looks at all pictures under these paths. What could not be trained or tested on is refused here."""
    found = gather(paths, table)
    dataset = found.dataset
    if len(dataset.classes) < 2:
        (only,) = dataset.classes
        raise UserError(
            f"{found.name} has one class, {only!r}, and a model tells two or more apart; "
            "add others, or give the folder that holds the class folders"
        )
    if not len(dataset.test):
        raise UserError(
            f"{found.name} has no test pictures, and too few of any class to hold some out (a fifth of five or more); "
            "add pictures, or put some into test/<class>/"
        )
    return Survey(found.name, dataset, found, check(dataset, None, found.layout, own=True, progress=progress))
