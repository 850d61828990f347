"""Where a folder of pictures keeps its splits, sites and classes: read off the names of its sub-folders.

    class/…    site/class/…    split/class/…    split/site/class/…    site/split/class/…

What lies deeper is the class's. Pictures straight in a split are unlabelled.
"""

import os
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from ...base.errors import UserError
from .files import SUFFIXES, readable

SPLITS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("test", "testing"), "test"),
    **dict.fromkeys(("val", "valid", "validation"), "val"),
}
CLUTTER = frozenset({"__MACOSX", "@eaDir"})  # left by archives and file servers; not hidden, yet nobody's pictures
Parts = tuple[str, ...]


def split_of(name: str) -> str:
    """train, test or val, as people write it; empty if it is none of them."""
    return SPLITS.get(name.strip().lower(), "")


@dataclass(frozen=True)
class Placed:
    """A picture and what its folders say of it; empty where they do not."""

    path: str
    split: str
    site: str
    label: str


@dataclass(frozen=True)
class Layout:
    pictures: list[Placed]
    splits: frozenset[str]  # that have a folder
    classes: list[str]  # folders that stand for one, those without pictures too; sorted
    outside: list[str]  # pictures that no layout has a place for
    others: list[str]  # files that are no pictures, by their names


def walk(
    root: Path, parts: Parts = (), above: frozenset[tuple[int, int]] = frozenset()
) -> Iterator[tuple[Parts, bool]]:
    """Everything below a folder, sorted, and whether it is a folder. What is hidden is left out; links are followed,
    but not in circles."""
    here = root.joinpath(*parts)
    try:
        above, entries = above | {place(here)}, sorted(os.scandir(here), key=lambda entry: entry.name)
    except OSError as error:
        raise UserError(f"cannot look into {here}: {error.strerror}; allow reading it, or move it away") from error
    for entry in entries:
        if entry.name.startswith(".") or entry.name in CLUTTER:
            continue
        if entry.is_dir():
            if place(here / entry.name) not in above:
                yield (*parts, entry.name), True
                yield from walk(root, (*parts, entry.name), above)
        elif entry.is_file():
            yield (*parts, entry.name), False


def place(folder: Path) -> tuple[int, int]:
    """Which folder it is, by whatever links one came."""
    stat = folder.stat()
    return stat.st_dev, stat.st_ino


def is_picture(name: str) -> bool:
    return Path(name).suffix.lower() in SUFFIXES


def pictures_in(folder: Path) -> Iterator[Path]:
    """All of them, at any depth, in order."""
    return (folder.joinpath(*parts) for parts, inner in walk(folder) if not inner and is_picture(parts[-1]))


def read_layout(root: Path, names: Collection[str] = ()) -> Layout:
    """`names` are the classes, if they are known: then there is no doubt at which level they are."""
    folders: list[Parts] = []
    files: list[Parts] = []
    for parts, inner in walk(root):
        (folders if inner else files).append(parts)
    found, others = ([parts for parts in files if is_picture(parts[-1]) is wanted] for wanted in (True, False))
    if any(split_of(parts[0]) for parts in folders):
        take: Callable[[Parts], tuple[str, str, Parts] | None] = split_first
    elif any(len(parts) == 2 and split_of(parts[1]) for parts in folders):
        take = site_first
        check_sites(root, folders, found)
    else:
        take = neither
    rest = {parts: taken for parts in (*folders, *found) if (taken := take(parts))}
    below = [rest[parts][2] for parts in found if parts in rest]
    sited = take is not site_first and has_sites(root, below, names)
    pictures, outside = [], []
    for parts in found:
        if parts not in rest or (take is neither and len(parts) <= 1 + sited):
            outside.append("/".join(parts))
            continue
        split, site, inner_parts = rest[parts]
        if sited and len(inner_parts) > 1:
            site, inner_parts = inner_parts[0], inner_parts[1:]
        pictures.append(Placed("/".join(parts), split, site, inner_parts[0] if len(inner_parts) > 1 else ""))
    classes = {rest[parts][2][sited] for parts in folders if parts in rest and len(rest[parts][2]) == 1 + sited}
    splits = frozenset(taken[0] for taken in rest.values()) - {""}
    return Layout(pictures, splits, sorted(classes), outside, ["/".join(parts) for parts in others])


def split_first(parts: Parts) -> tuple[str, str, Parts] | None:
    return (split, "", parts[1:]) if (split := split_of(parts[0])) else None


def site_first(parts: Parts) -> tuple[str, str, Parts] | None:
    return (split, parts[0], parts[2:]) if len(parts) > 1 and (split := split_of(parts[1])) else None


def neither(parts: Parts) -> tuple[str, str, Parts] | None:
    return "", "", parts


def check_sites(root: Path, folders: list[Parts], pictures: list[Parts]) -> None:
    """Sites of which some have train/ and test/ and some have not are read by no rule."""
    split = {parts[0] for parts in folders if len(parts) == 2 and split_of(parts[1])}
    if bare := sorted({parts[0] for parts in pictures if len(parts) > 1} - split):
        facts = f"{root / min(split)} is divided into train and test, {root / bare[0]} is not"
        raise UserError(f"{facts}; give each site a train/ and a test/, or none of them")


def has_sites(root: Path, pictures: list[Parts], names: Collection[str]) -> bool:
    """Whether the first level below a split is sites and the second one classes, rather than classes and whatever."""
    inner: dict[str, set[str]] = {}
    for parts in pictures:
        if len(parts) > 2:
            inner.setdefault(parts[0], set()).add(parts[1])
    first = {parts[0] for parts in pictures if len(parts) > 1}
    second = Counter(name for folders in inner.values() for name in folders)
    if not second:
        return False
    if names:
        return all(readable(name) in names for name in second) and not all(readable(name) in names for name in first)
    if any(len(parts) == 2 for parts in pictures) or len(second) == 1:
        return False  # pictures straight in the first level: a class; one folder in each of them: cat/images
    hint = f"write the class names into {root / 'classes.txt'}, a line each"
    if len(first) == 1:
        (only,) = first
        raise UserError(
            f"{root} has all its pictures in folders of the one folder {only}; give {root / only}, or {hint}"
        )
    shared = [name for name, times in second.items() if times > 1]
    if shared and 2 * len(shared) < len(second):
        one, lone = min(shared), min(name for name in second if name not in shared)
        facts = f"{one} is in several of {', '.join(sorted(first)[:3])}, {lone} in one only"
        raise UserError(f"{root}: are its folders sites or classes? {facts}; {hint}")
    return bool(shared)
