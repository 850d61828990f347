"""The two ends of a deployment: a server with class names and test pictures, sites with some of the classes each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from functools import partial
from pathlib import Path

import numpy as np

from ..base.errors import UserError
from . import Loader, open_dataset
from .dataset import Dataset, Split
from .datasets.folder import any_folder, folder
from .datasets.table import any_table, table


def for_server(name: str, root: Path | None = None) -> Dataset:
    """A dataset that may lack pictures to train on or, if `classes.txt` names the classes, any pictures."""
    return opened(name, root, {"folder": any_folder, "csv": any_table})


def for_site(name: str, root: Path | None, classes: Sequence[str]) -> Dataset:
    """A site's dataset under the federation's class names; unlabelled pictures alone will do."""
    forms = {"folder": partial(folder, otherwise=classes), "csv": partial(table, otherwise=classes)}
    return under(opened(name, root, forms), classes)


def opened(name: str, root: Path | None, forms: Mapping[str, Loader]) -> Dataset:
    form, _, path = name.partition(":")
    return replace(forms[form](Path(path).expanduser()), name=name) if form in forms else open_dataset(name, root)


def under(dataset: Dataset, classes: Sequence[str]) -> Dataset:
    """The same pictures, their labels counted along other class names, among which each of theirs must be."""
    numbers = np.array([classes.index(name) if name in classes else -1 for name in dataset.classes], dtype=np.int64)

    def renumbered(split: Split) -> Split:
        return split if split.labels is None else replace(split, labels=numbers[split.labels])

    parts = (dataset.train, dataset.test)
    used = np.unique(np.concatenate([split.labels for split in parts if split.labels is not None] or [numbers[:0]]))
    if strangers := [dataset.classes[label] for label in used if numbers[label] < 0]:
        told = ", ".join(hinted(name, classes) for name in strangers)
        raise UserError(
            f"{dataset.name} has pictures of {told}: none of the federation's {len(classes)} classes "
            f"({classes[0]!r} is one); rename these folders or labels, or take them out"
        )
    train, test = map(renumbered, parts)
    return replace(dataset, classes=tuple(classes), train=train, test=test, coarse=None, order=None)


def hinted(name: str, classes: Sequence[str]) -> str:
    near = get_close_matches(name, classes, n=1)
    return f"{name!r} (did you mean {near[0]!r}?)" if near else repr(name)
