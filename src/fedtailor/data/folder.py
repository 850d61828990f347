"""`folder:PATH`: a user's own pictures, one folder per class, or unlabelled in one heap."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedtailor.data.files import PHOTO, SUFFIXES, class_names, every, folders, listed, pictures, readable
from fedtailor.data.sets import Dataset, Split
from fedtailor.errors import UserError

STEP = 5  # without a test folder, every fifth picture of a class (by name) is for testing


def folder(root: Path) -> Dataset:
    """`root/train/<class>/…` and `root/test/<class>/…`, or `root/<class>/…`, or unlabelled pictures in `root/train`."""
    if not root.is_dir():
        raise UserError(f"{root} is not a folder; give the folder that holds train/ and test/, or one folder per class")
    if (root / "train").is_dir():
        names, train, test = two_parts(root)
    elif (root / "test").is_dir():
        raise UserError(f"{root} has test/ but no train/; add train/, or put the class folders straight into {root}")
    else:
        names = class_names(root / "classes.txt", folders(root), root)
        both = labelled(root, "", names)
        train, test = (both.subset(part) for part in every(np.asarray(both.labels), STEP))
    if len(train) == 0:
        raise UserError(f"{root} has no pictures to train on; their names must end in {', '.join(sorted(SUFFIXES))}")
    return Dataset(f"folder:{root}", tuple(map(readable, names)), PHOTO, train, test)


def two_parts(root: Path) -> tuple[list[str], Split, Split]:
    loose, train_names = pictures(root / "train"), folders(root / "train")
    if loose and train_names:
        raise UserError(
            f"{root / 'train'} holds pictures such as {loose[0]} beside folders such as {train_names[0]}; "
            "put all pictures into class folders (labelled) or none (unlabelled)"
        )
    test_names: list[str] = []
    if (root / "test").is_dir():
        test_names = folders(root / "test")
        if stray := pictures(root / "test"):
            raise UserError(f"{root / 'test' / stray[0]} has no label; put test pictures into one folder per class")
    names = class_names(root / "classes.txt", sorted({*train_names, *test_names}), root)
    heap = listed(root, [f"train/{name}" for name in loose], None)
    return names, heap if loose else labelled(root, "train", names), labelled(root, "test", names)


def labelled(root: Path, part: str, names: list[str]) -> Split:
    found = [
        (f"{part}/{name}/{picture}" if part else f"{name}/{picture}", label)
        for label, name in enumerate(names)
        if (root / part / name).is_dir()
        for picture in pictures(root / part / name)
    ]
    return listed(root, [path for path, _ in found], [label for _, label in found])
