"""`folder:PATH`: a user's own pictures, one folder per class, or unlabelled in one heap."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ...base.errors import UserError
from ..dataset import Dataset, Split
from .files import PHOTO, SUFFIXES, class_names, folders, hold_out, listed, pictures, readable


def folder(root: Path, otherwise: Sequence[str] = (), must_train: bool = True) -> Dataset:
    """`root/train/<class>/…` and `root/test/<class>/…`, or `root/<class>/…`, or unlabelled pictures in `root/train`.

    `otherwise` are the class names if the folder itself has none. Without `must_train`, there may be no pictures.
    """
    if not root.is_dir():
        raise UserError(f"{root} is not a folder; give the folder that holds train/ and test/, or one folder per class")
    if any((root / part).is_dir() for part in ("train", "test")):
        names, train, test = two_parts(root, otherwise)
    else:
        names = class_names(root / "classes.txt", folders(root), root, otherwise)
        both = labelled(root, "", names)
        train, test = (both.subset(part) for part in hold_out(np.asarray(both.labels)))
    if must_train and (root / "test").is_dir() and not (root / "train").is_dir():
        raise UserError(f"{root} has test/ but no train/; add train/, or put the class folders straight into {root}")
    if must_train and not len(train):
        raise UserError(f"{root} has no pictures to train on; their names must end in {', '.join(sorted(SUFFIXES))}")
    return Dataset(f"folder:{root}", tuple(map(readable, names)), PHOTO, train, test)


def two_parts(root: Path, otherwise: Sequence[str]) -> tuple[list[str], Split, Split]:
    loose, train_names = inside(root / "train")
    if loose and train_names:
        raise UserError(
            f"{root / 'train'} holds pictures such as {loose[0]} beside folders such as {train_names[0]}; "
            "put all pictures into class folders (labelled) or none (unlabelled)"
        )
    stray, test_names = inside(root / "test")
    if stray:
        raise UserError(f"{root / 'test' / stray[0]} has no label; put test pictures into one folder per class")
    names = class_names(root / "classes.txt", sorted({*train_names, *test_names}), root, otherwise)
    heap = listed(root, [f"train/{name}" for name in loose], None)
    return names, heap if loose else labelled(root, "train/", names), labelled(root, "test/", names)


def inside(part: Path) -> tuple[list[str], list[str]]:
    return (pictures(part), folders(part)) if part.is_dir() else ([], [])


def labelled(root: Path, part: str, names: list[str]) -> Split:
    found = [
        (f"{part}{name}/{picture}", label)
        for label, name in enumerate(names)
        if (root / part / name).is_dir()
        for picture in pictures(root / part / name)
    ]
    return listed(root, [path for path, _ in found], [label for _, label in found])
