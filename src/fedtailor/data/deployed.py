"""The two ends of a deployment: a server with class names and test pictures, sites with some of the classes each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from functools import partial
from pathlib import Path

import numpy as np

from ..base.errors import UserError
from . import FORMS, Loader, open_dataset
from .dataset import Dataset, Split


def for_server(name: str, root: Path | None = None) -> Dataset:
    """A dataset that may have no training pictures, or no pictures at all if `classes.txt` names the classes."""
    return open_with(name, root, {form: partial(load, must_train=False) for form, load in FORMS.items()})


def for_site(name: str, root: Path | None, classes: Sequence[str]) -> Dataset:
    """A site's dataset under the federation's class names; it may consist of unlabelled pictures alone."""
    loaders = {form: partial(load, otherwise=classes) for form, load in FORMS.items()}
    return with_classes(open_with(name, root, loaders), classes)


def open_with(name: str, root: Path | None, loaders: Mapping[str, Loader]) -> Dataset:
    form, _, path = name.partition(":")
    if form not in loaders:
        return open_dataset(name, root)
    return replace(loaders[form](Path(path).expanduser()), name=name)


def with_classes(dataset: Dataset, classes: Sequence[str]) -> Dataset:
    """The same pictures, with labels that count along these class names. Each class of a picture must be among them."""
    number_of = {name: number for number, name in enumerate(classes)}
    numbers = np.array([number_of.get(name, -1) for name in dataset.classes], dtype=np.int64)
    parts = (dataset.train, dataset.test)
    used = np.unique(np.concatenate([split.labels for split in parts if split.labels is not None] or [numbers[:0]]))
    if strangers := [dataset.classes[label] for label in used if numbers[label] < 0]:
        raise UserError(
            f"{dataset.name} has pictures of {', '.join(hinted(name, classes) for name in strangers)}: none of the "
            f"federation's {len(classes)} classes ({classes[0]!r} is one); rename these folders or labels, or take "
            "them out"
        )

    def renumbered(split: Split) -> Split:
        return split if split.labels is None else replace(split, labels=numbers[split.labels])

    train, test = map(renumbered, parts)
    return replace(dataset, classes=tuple(classes), train=train, test=test, coarse=None, order=None)


def hinted(name: str, classes: Sequence[str]) -> str:
    near = get_close_matches(name, classes, n=1)
    return f"{name!r} (did you mean {near[0]!r}?)" if near else repr(name)
