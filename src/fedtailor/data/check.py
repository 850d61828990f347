"""Whether a dataset is whole: what of it will not be used, what cannot be read, what is there twice."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..base.progress import ProgressFn
from .dataset import Dataset, histogram
from .datasets.layout import Layout
from .reading import Seen, read_all

# Formats of pictures that are not read. Other files beside pictures (notes, tables) are nothing to worry about.
FOREIGN = frozenset(
    {".heic", ".heif", ".avif", ".jp2", ".jxl", ".svg", ".psd", ".tga", ".pdf", ".raw", ".cr2", ".nef", ".arw", ".dng"}
    | {".npy", ".npz", ".nii", ".mha", ".mat"}
)
EXAMPLES = 5
UNREADABLE = "pictures that cannot be read"
LONELY = "classes that one site alone has; or has another a name of its own for them?"


@dataclass(frozen=True)
class Finding:
    what: str
    count: int
    wrong: bool  # likely a mistake, rather than merely worth knowing
    examples: tuple[str, ...] = ()


@dataclass(frozen=True)
class Checked:
    """What is known of a dataset after every picture of it was read."""

    name: str
    findings: list[Finding]
    facts: dict[str, int]  # pictures to train and to test on, classes, sites
    notes: tuple[str, ...] = ()
    sides: tuple[int, int, int] | None = None  # shorter ones, in pixels: least, median, most

    @property
    def ok(self) -> bool:
        return not any(finding.wrong for finding in self.findings)

    def document(self) -> dict[str, Any]:
        found = [asdict(finding) for finding in self.findings]
        rest = {"findings": found, "notes": list(self.notes), "sides": self.sides}
        return {"data": self.name, "ok": self.ok, **self.facts, **rest}


def check(
    dataset: Dataset,
    sizes: tuple[int, int] | None = None,
    layout: Layout | None = None,
    own: bool = True,
    progress: ProgressFn | None = None,
) -> Checked:
    """`sizes` are the published ones; `layout` of a user's folder; `own`: a user's, who can do something about it."""
    found = [*of_files(layout)] if layout else []
    found += of_classes(dataset)
    parts = {"training": dataset.train, "test": dataset.test}
    for (what, split), size in zip(parts.items(), sizes or (None, None), strict=True):
        if size is not None and len(split) != size:
            found.append(Finding(f"{what} pictures; as published there are {size}", len(split), True))
        elif not len(split):
            found.append(Finding(f"no {what} pictures", 0, True))
    seen = list(read_all(dataset, progress))
    found += finding(UNREADABLE, [one.error for one in seen if one.error])
    found += of_copies(seen, own)
    facts = {"train": len(dataset.train), "test": len(dataset.test), "classes": len(dataset.classes)}
    facts["sites"] = len(dataset.site_names)
    sides = sorted(one.side for one in seen if not one.error)
    middle = (sides[0], sides[len(sides) // 2], sides[-1]) if sides else None
    return Checked(dataset.name, found, facts, dataset.notes, middle)


def in_words(sides: tuple[int, int, int]) -> str:
    least, middle, most = sides
    return f"{least} pixels" if least == most else f"{least} to {most} pixels, half of them {middle} or more"


def finding(what: str, examples: Sequence[str], wrong: bool = True) -> list[Finding]:
    return [Finding(what, len(examples), wrong, tuple(examples[:EXAMPLES]))] if examples else []


def of_files(layout: Layout) -> Iterator[Finding]:
    foreign, others = list[str](), list[str]()
    for name in layout.others:
        (foreign if Path(name).suffix.lower() in FOREIGN else others).append(name)
    others = [name for name in others if name != "classes.txt"]
    yield from finding("pictures of a format that is not read", foreign)
    yield from finding("other files, not read", others, wrong=False)
    yield from finding("pictures outside the class folders, not used", layout.outside)


def of_classes(dataset: Dataset) -> Iterator[Finding]:
    alike = defaultdict(list)
    for name in dataset.classes:
        alike["".join(name.casefold().split())].append(name)
    same = [" = ".join(map(repr, names)) for names in alike.values() if len(names) > 1]
    yield from finding("classes whose names differ only in case or blanks", same)
    if len(dataset.classes) == 1:
        yield Finding("one class only, and a model tells two or more apart", 1, True, dataset.classes)
    yield from finding(LONELY, list(lonely(dataset)), wrong=False)
    missing = {}
    for what, split in (("training", dataset.train), ("test", dataset.test)):
        if split.labels is not None and len(split):
            there = histogram(split.labels, len(dataset.classes)) > 0
            missing[what] = {name for name, has in zip(dataset.classes, there, strict=True) if not has}
    empty = set.intersection(*missing.values()) if missing else set()
    yield from finding("classes without any picture", sorted(empty))
    for what, names in missing.items():
        yield from finding(f"classes without a {what} picture", sorted(names - empty))


def lonely(dataset: Dataset) -> Iterator[str]:
    labels, sites = dataset.train.labels, dataset.train.sites
    if labels is None or sites is None or len(np.unique(sites)) < 2:
        return
    for label, name in enumerate(dataset.classes):
        if len(there := np.unique(sites[labels == label])) == 1:
            yield f"{name} ({dataset.site_names[there[0]]})"


def of_copies(seen: Iterable[Seen], own: bool) -> Iterator[Finding]:
    """Pictures with the very same pixels, in whatever file format."""
    copies: dict[bytes, list[Seen]] = defaultdict(list)
    for one in seen:
        if not one.error:
            copies[one.digest].append(one)
    torn, spread, rest = list[list[Seen]](), list[list[Seen]](), list[list[Seen]]()
    for group in copies.values():
        if len({one.split for one in group}) > 1:
            torn.append(group)
        if len({one.site for one in group}) > 1:
            spread.append(group)
        elif len(group) > 1 and len({one.split for one in group}) == 1:
            rest.append(group)
    for what, groups, wrong in (
        ("pictures that are in training and in test", torn, own),
        ("pictures that are at several sites", spread, own),
        ("pictures that are there twice or more in one place", rest, False),
    ):
        yield from finding(
            what, [" = ".join(one.name or f"{one.split} {one.index}" for one in g[:3]) for g in groups], wrong
        )
