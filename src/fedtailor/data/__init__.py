"""Datasets by name: in one process, at a server or a site, and whether one is complete and readable."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np
import platformdirs

from ..base.errors import UserError, shortened, unknown
from ..base.folders import user_path
from ..base.progress import ProgressFn
from ..base.rng import numpy_generator
from .check import Checked, Finding, check
from .dataset import UNKNOWN, Dataset, Rng, Split, histogram
from .datasets import cifar, drawn, fashion, own, published
from .groups import profile, thin
from .reading import without_broken


@dataclass(frozen=True)
class Source:
    """How a dataset is opened. `imbalance` is its long tail unless told otherwise; None: it has one of its own."""

    load: Callable[[Path], Dataset]
    imbalance: float | None = 1.0
    sizes: tuple[int, int] | None = None  # training and test pictures as published, before any thinning


DATASETS: dict[str, Source] = {
    "drawn": Source(lambda _: drawn.drawn()),  # always the same pictures: a run's seed thins them and deals them out
    "drawn-lt": Source(lambda _: drawn.drawn(), imbalance=100),
    "cifar10": Source(cifar.cifar10, sizes=(50_000, 10_000)),
    "cifar10-lt": Source(cifar.cifar10, imbalance=100, sizes=(50_000, 10_000)),
    "cifar100": Source(cifar.cifar100, sizes=(50_000, 10_000)),
    "cifar100-lt": Source(cifar.cifar100, imbalance=100, sizes=(50_000, 10_000)),
    "fashion-mnist": Source(fashion.fashion_mnist, sizes=(60_000, 10_000)),
    "fashion-mnist-lt": Source(fashion.fashion_mnist, imbalance=100, sizes=(60_000, 10_000)),
    "imagenet-lt": Source(published.imagenet_lt, imbalance=None, sizes=(115_846, 50_000)),
    "dtd": Source(published.dtd, sizes=(3_760, 1_880)),
    "resisc45": Source(published.resisc45),  # its split, and so its sizes, are the user's choice
    "cub": Source(published.cub, sizes=(5_994, 5_794)),
    "ucf101": Source(published.ucf101, sizes=(9_537, 3_783)),
}

# `folder:PATH` and `csv:PATH`: the path takes the place of the root.
FORMS: dict[str, Callable[..., Dataset]] = {"folder": own.folder, "csv": own.table}


def default_root() -> Path:
    """Where downloads are looked for: $FEDTAILOR_DATA, or a folder of the user's cache."""
    chosen = os.environ.get("FEDTAILOR_DATA")
    return user_path(chosen) if chosen else Path(platformdirs.user_cache_dir("fedtailor")) / "data"


def find_source(name: str, **options: Any) -> Source:
    """`options` are for the loaders of a user's own pictures."""
    form, colon, path = name.partition(":")
    if colon and form in FORMS:
        return Source(lambda _: FORMS[form](user_path(path), **options))
    if name not in DATASETS:
        where = user_path(path if colon else name)
        if fits := "folder" if where.is_dir() else "csv" if where.suffix.lower() == ".csv" else "":
            todo = f"for your own pictures write {fits}:{path if colon else name}"
            raise UserError(f"unknown dataset {shortened(name)}; {todo}")
        raise unknown("dataset", name, [*DATASETS, *(f"{form}:PATH" for form in FORMS)], "fedtailor list datasets")
    return DATASETS[name]


def find_sites(name: str) -> int:
    """How many sites a user's own training pictures come from, where folders or a table tell; 0: they do not."""
    form, _, path = name.partition(":")
    if form not in FORMS or not user_path(path).exists():
        return 0  # opening it will say what is wrong
    sites = find_source(name, must_train=False).load(Path()).train.sites
    return 0 if sites is None else len(np.unique(sites))


def open_dataset(
    name: str,
    root: Path | None = None,
    *,
    imbalance: float | None = None,
    most: int = 0,
    seed: int = 0,
    rng: np.random.RandomState | None = None,
    broken: str = "error",
    progress: ProgressFn | None = None,
    **options: Any,
) -> Dataset:
    """A dataset by name. `imbalance` (IF) makes a long tail of the training part: 1 none, None the name's own; `most`
    is the largest number of pictures that a class keeps, 0: all. It is thinned by the seed, class after class; or by
    `rng` as the released codes do, from the largest on. `broken="skip"` first reads every picture, and leaves out those
    that cannot be read."""
    source = find_source(name, **options)
    if imbalance is not None and not 1 <= imbalance < float("inf"):
        raise UserError(f"imbalance must be 1 (as it is) or more, such as 100, got {imbalance}")
    if source.imbalance is None and imbalance not in (None, 1):
        raise UserError(f"{name} brings its own long tail, so imbalance={imbalance} cannot be set; leave imbalance out")
    dataset = replace(source.load(root or default_root()), name=name)
    if broken == "skip":
        dataset = without_broken(dataset, progress)
    factor, C = imbalance or source.imbalance or 1, len(dataset.classes)
    if factor == 1 and not most:
        return dataset
    if dataset.train.labels is None or dataset.train.partly:
        what = f"most={most}" if most else f"imbalance={factor}"
        lacking = "some of the" if dataset.train.partly else "the"
        raise UserError(f"{what}: {lacking} training pictures of {name} have no labels to thin by")
    every = histogram(dataset.train.labels, C)
    counts = every if factor == 1 else profile(len(dataset.train) / C, C, factor, dataset.order)
    counts = np.minimum(counts, most) if most else counts
    chance: Rng = rng or numpy_generator(seed, "longtail")
    kept = thin(dataset.train.labels, counts, chance, dataset.order if rng else None)
    return replace(dataset, train=dataset.train.subset(kept))


def for_server(name: str, root: Path | None = None, broken: str = "error") -> Dataset:
    """A dataset that may have no training pictures, or no pictures at all if `classes.txt` names the classes."""
    return open_dataset(name, root, broken=broken, must_train=False)


def for_site(name: str, root: Path | None, classes: Sequence[str], broken: str = "error") -> Dataset:
    """A site's dataset under the federation's class names; it may consist of unlabelled pictures alone."""
    return with_classes(open_dataset(name, root, broken=broken, otherwise=classes), classes)


def with_classes(dataset: Dataset, classes: Sequence[str]) -> Dataset:
    """The same pictures, with labels that count along these class names. Each class of a picture must be among them."""
    number_of = {name: number for number, name in enumerate(classes)}
    numbers = np.array([number_of.get(name, -1) for name in dataset.classes], dtype=np.int64)
    parts = (dataset.train, dataset.test)
    given = [split.labels[split.labels != UNKNOWN] for split in parts if split.labels is not None]
    used = np.unique(np.concatenate(given or [numbers[:0]]))
    if strangers := [hinted(dataset.classes[label], classes) for label in used if numbers[label] < 0]:
        raise UserError(
            f"{dataset.name} has pictures of {', '.join(strangers)}: none of the federation's {len(classes)} classes "
            f"({classes[0]!r} is one); rename these folders or labels, or take them out"
        )

    def renumbered(split: Split) -> Split:
        labels = split.labels
        return split if labels is None else replace(split, labels=np.where(labels == UNKNOWN, labels, numbers[labels]))

    train, test = map(renumbered, parts)
    return replace(dataset, classes=tuple(classes), train=train, test=test, coarse=None, order=None)


def hinted(name: str, classes: Sequence[str]) -> str:
    near = get_close_matches(name, classes, n=1)
    return f"{name!r} (did you mean {near[0]!r}?)" if near else repr(name)


def check_dataset(name: str, root: Path | None = None, progress: ProgressFn | None = None) -> Checked:
    """Opens the dataset as downloaded (before any thinning), counts it and reads every picture."""
    source, (form, _, path) = find_source(name), name.partition(":")
    try:
        dataset = replace(source.load(root or default_root()), name=name)
        layout = own.layout_of(user_path(path)) if form == "folder" else None
    except UserError as error:
        return Checked(name, [Finding(str(error), 1, wrong=True)], {})
    return check(dataset, source.sizes, layout, form in FORMS, progress)
