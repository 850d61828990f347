"""The two ends of a deployment: a server with class names and test pictures, sites with some of the classes each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path

import numpy as np

from ..base.errors import UserError
from . import open_dataset
from .dataset import Dataset


def for_server(name: str, root: Path | None = None) -> Dataset:
    """A dataset that may have no training pictures, or no pictures at all if `classes.txt` names the classes."""
    return open_dataset(name, root, must_train=False)


def for_site(name: str, root: Path | None, classes: Sequence[str]) -> Dataset:
    """A site's dataset under the federation's class names; it may consist of unlabelled pictures alone."""
    return with_classes(open_dataset(name, root, otherwise=classes), classes)


def with_classes(dataset: Dataset, classes: Sequence[str]) -> Dataset:
    """The same pictures, with labels that count along these class names. Each class of a picture must be among them."""
    number_of = {name: number for number, name in enumerate(classes)}
    numbers = np.array([number_of.get(name, -1) for name in dataset.classes], dtype=np.int64)
    parts = (dataset.train, dataset.test)
    used = np.unique(np.concatenate([split.labels for split in parts if split.labels is not None] or [numbers[:0]]))
    if strangers := [hinted(dataset.classes[label], classes) for label in used if numbers[label] < 0]:
        raise UserError(
            f"{dataset.name} has pictures of {', '.join(strangers)}: none of the federation's {len(classes)} classes "
            f"({classes[0]!r} is one); rename these folders or labels, or take them out"
        )
    train, test = (split if split.labels is None else replace(split, labels=numbers[split.labels]) for split in parts)
    return replace(dataset, classes=tuple(classes), train=train, test=test, coarse=None, order=None)


def hinted(name: str, classes: Sequence[str]) -> str:
    near = get_close_matches(name, classes, n=1)
    return f"{name!r} (did you mean {near[0]!r}?)" if near else repr(name)
