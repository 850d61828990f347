"""What the loaders share: files that must be there, lists of lines, pictures in a folder."""

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ...base.errors import UserError
from ..dataset import UNKNOWN, FileImages, Indices, Split
from ..pictures import DICOM

SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm", DICOM})
PHOTO = "a photo of a {}."

# What a file name cannot hold or would not give back: a leading dot hides a file, Windows drops one at the end.
UNSAFE = re.compile(r'[\x00-\x1f%_/\\:*?"<>|]|^\.|\.$')
SPELLED = re.compile(r"%([01][0-9A-F]|2[25AEF]|3[ACEF]|5[CF]|7C)")


def need(path: Path, download: str) -> Path:
    """The path, if it is there; otherwise what to download and where to put it."""
    if not path.exists():
        raise UserError(f"{path} is missing; download {download}, so that this path exists")
    return path


def read_lines(path: Path) -> list[str]:
    """The lines that are not blank, stripped."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not text in UTF-8 ({error}); save it as UTF-8") from error
    return [line.strip() for line in text.splitlines() if line.strip()]


def read_pairs(path: Path) -> list[tuple[str, str]]:
    """Lines of a word and a text."""
    pairs = []
    for number, line in enumerate(read_lines(path), 1):
        first, _, second = line.partition(" ")
        if not second:
            raise UserError(f"{path}, entry {number}: expected two words, got {line!r}; download the file again")
        pairs.append((first, second.strip()))
    return pairs


def visible(folder: Path) -> list[Path]:
    """What a folder holds, hidden files left out; nothing if it is not there."""
    return [entry for entry in folder.iterdir() if not entry.name.startswith(".")] if folder.is_dir() else []


def pictures(folder: Path) -> list[str]:
    """Names of the picture files directly in a folder, sorted."""
    return sorted(entry.name for entry in visible(folder) if entry.suffix.lower() in SUFFIXES and entry.is_file())


def folders(folder: Path) -> list[str]:
    return sorted(entry.name for entry in visible(folder) if entry.is_dir())


def readable(name: str) -> str:
    """The class name that a folder or a label spells."""
    return SPELLED.sub(lambda found: chr(int(found[1], 16)), name.replace("_", " "))


def spelled(name: str) -> str:
    """A class name as a file name that any system takes; `readable` undoes it."""
    return UNSAFE.sub(lambda found: f"%{ord(found[0]):02X}", name).replace(" ", "_")


def listed(root: Path, paths: Sequence[str], *numbers: Sequence[int] | None) -> Split:
    """`numbers` are the labels and, if told, the sites and the groups."""
    arrays = (None if values is None else np.array(values, dtype=np.int64) for values in numbers)
    return Split(FileImages(root, tuple(paths)), *arrays)


def hold_out(
    labels: Indices, step: int = 5, sites: Indices | None = None, groups: Indices | None = None, least: int = 0
) -> tuple[Indices, Indices]:
    """Indices (train, test): within each class every `step`-th picture is for testing, always the same ones; counted
    site after site, so that each has its part. Groups stay whole: every `step`-th of those that are mostly of a class,
    or its last if it has two or more. `least`: so many of a class that has two or more."""
    if groups is not None:
        alike, first = np.unique(groups, return_index=True)
        mostly = commonest(labels, groups)
        chosen = hold_out(mostly, step, None if sites is None else sites[first], least=1)[1]
        test = np.isin(groups, alike[chosen])
        return np.flatnonzero(~test), np.flatnonzero(test)
    test = np.zeros(len(labels), dtype=np.bool_)
    order = np.arange(len(labels)) if sites is None else np.argsort(sites, kind="stable")
    for label in np.unique(labels[labels != UNKNOWN]):
        members = order[labels[order] == label]
        held = members[step - 1 :: step]
        test[members[-least:] if len(held) < least < len(members) else held] = True
    return np.flatnonzero(~test), np.flatnonzero(test)


def commonest(labels: Indices, groups: Indices) -> Indices:
    """The label that most pictures of a group have, for each group in order; of equals the first."""
    cells, times = np.unique(np.stack([groups, labels]), axis=1, return_counts=True)
    order = np.lexsort((cells[1], -times, cells[0]))
    _, first = np.unique(cells[0][order], return_index=True)
    return np.asarray(cells[1][order][first])


def class_names(path: Path, found: list[str], where: Path, otherwise: Sequence[str] = ()) -> list[str]:
    """The names in `classes.txt` if there is one, in its order; else those that were found; else `otherwise`."""
    if not path.is_file():
        if not found and not otherwise:
            raise UserError(f"{where} names no classes; write their names into {path}, a line each, or label pictures")
        return found or list(otherwise)
    names = read_lines(path)
    if twice := [name for name, times in Counter(names).items() if times > 1]:
        raise UserError(f"{path} names the class {twice[0]!r} twice; keep one")
    if strangers := sorted(set(found) - set(names)):
        raise UserError(f"{where} has the class {strangers[0]!r}, which {path} lacks; add it there or rename it")
    return names
