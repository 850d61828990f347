"""A user's own pictures: `folder:PATH`, one folder per class or unlabelled in one heap, and `csv:PATH`, a table."""

import csv
from collections import Counter
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ...base.errors import UserError
from ..dataset import Dataset, Split
from .files import PHOTO, SUFFIXES, class_names, folders, hold_out, listed, pictures, readable


def folder(root: Path, otherwise: Sequence[str] = (), must_train: bool = True) -> Dataset:
    """`root/train/<class>/…` and `root/test/<class>/…`, or `root/<class>/…`, or unlabelled pictures in `root/train`.
    `otherwise` are the class names if the folder itself has none. Without `must_train`, there may be no pictures."""
    if not root.is_dir():
        raise UserError(f"{root} is not a folder; give the folder that holds train/ and test/, or one folder per class")
    names_file, train_part, test_part = (root / name for name in ("classes.txt", "train", "test"))
    if train_part.is_dir() or test_part.is_dir():
        loose, train_names, test_names = pictures(train_part), folders(train_part), folders(test_part)
        if loose and train_names:
            facts = f"holds pictures such as {loose[0]} beside folders such as {train_names[0]}"
            todo = "put all pictures into class folders (labelled) or none (unlabelled)"
            raise UserError(f"{train_part} {facts}; {todo}")
        if stray := pictures(test_part):
            raise UserError(f"{test_part / stray[0]} has no label; put test pictures into one folder per class")
        names = class_names(names_file, sorted({*train_names, *test_names}), root, otherwise)
        heap = listed(root, [f"train/{name}" for name in loose], None)
        train, test = heap if loose else labelled(root, "train/", names), labelled(root, "test/", names)
    else:
        names = class_names(names_file, folders(root), root, otherwise)
        both = labelled(root, "", names)
        train, test = (both.subset(part) for part in hold_out(np.asarray(both.labels)))
    if must_train and test_part.is_dir() and not train_part.is_dir():
        raise UserError(f"{root} has test/ but no train/; add train/, or put the class folders straight into {root}")
    if must_train and not len(train):
        raise UserError(f"{root} has no pictures to train on; their names must end in {', '.join(sorted(SUFFIXES))}")
    return Dataset(f"folder:{root}", tuple(map(readable, names)), PHOTO, train, test)


def labelled(root: Path, part: str, names: list[str]) -> Split:
    found = [pictures(root / part / name) for name in names]
    paths = [f"{part}{name}/{file}" for name, files in zip(names, found, strict=True) for file in files]
    return listed(root, paths, np.repeat(np.arange(len(names)), [len(files) for files in found]).tolist())


class TableRow(NamedTuple):
    """One line of the file; a column that is not there reads as empty."""

    path: str
    label: str = ""
    split: str = ""
    site: str = ""


COLUMNS = TableRow._fields


def table(path: Path, otherwise: Sequence[str] = (), must_train: bool = True) -> Dataset:
    """The pictures of a CSV file; `otherwise` are the class names if neither it nor `classes.txt` beside it has any."""
    rows = read_rows(path)
    train, test = divided(path, rows)
    if must_train and not train:
        raise UserError(f"{path} has no train rows; write train into the split column of some")
    if test and not filled(path, test, "label", "test"):
        raise UserError(f"{path}: the test rows have no labels to test with; label them or make them train rows")
    found = sorted({row.label for row in rows} - {""})
    names = class_names(path.with_name("classes.txt"), found, path, otherwise)
    numbers = {name: number for number, name in enumerate(names)}
    sites = {site: number for number, site in enumerate(sorted({row.site for row in rows if row.site}))}

    def split(part: list[TableRow], what: str) -> Split:
        # No test rows is an empty labelled split, not an unlabelled one: there is nothing to label.
        labels = [numbers[row.label] for row in part] if filled(path, part, "label", what) or not part else None
        places = [sites[row.site] for row in part] if filled(path, part, "site", what) else None
        return listed(path.parent, [row.path for row in part], labels, places)

    parts = split(train, "train"), split(test, "test")
    return Dataset(f"csv:{path}", tuple(map(readable, names)), PHOTO, *parts, site_names=tuple(sites))


def divided(path: Path, rows: list[TableRow]) -> tuple[list[TableRow], list[TableRow]]:
    """Train and test rows, by the split column or, if it is empty, every fifth of a class for testing."""
    if filled(path, rows, "split", "data"):
        if wrong := [row for row in rows if row.split not in ("train", "test")]:
            raise UserError(f"{path}: split must be train or test, got {wrong[0].split!r} for {wrong[0].path}")
        return [row for row in rows if row.split == "train"], [row for row in rows if row.split == "test"]
    if not filled(path, rows, "label", "data"):
        return rows, []
    _, labels = np.unique([row.label for row in rows], return_inverse=True)
    train, test = hold_out(labels.astype(np.int64))
    return [rows[index] for index in train], [rows[index] for index in test]


def filled(path: Path, rows: list[TableRow], column: str, what: str) -> bool:
    """Whether a column is filled in all these rows rather than in none; anything between is an error."""
    empty = [row for row in rows if not getattr(row, column)]
    if empty and len(empty) < len(rows):
        facts = f"{len(empty)} of {len(rows)} {what} rows have no {column} (the first is {empty[0].path})"
        raise UserError(f"{path}: {facts}; fill it in for all of them or for none")
    return bool(rows) and not empty


def read_rows(path: Path) -> list[TableRow]:
    if not path.is_file():
        raise UserError(f"{path} is not a file; give a CSV file with a header: path and, if known, label, split, site")
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            header, *lines = [line for line in csv.reader(file, strict=True) if line] or [[]]
    except (csv.Error, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not a well-formed CSV file in UTF-8: {error}") from error
    header = [column.strip() for column in header]
    # Users may have columns of their own, but a misspelt one would silently mean "unlabelled".
    for column in header:
        near = get_close_matches(column.lower(), COLUMNS, n=1, cutoff=0.75)
        if column not in COLUMNS and near and near[0] not in header:
            raise UserError(f"{path}: unknown column {column!r}; did you mean {near[0]!r}?")
    if "path" not in header:
        raise UserError(f"{path} has no column 'path' with the pictures' files, only {', '.join(header)!r}; add it")
    if twice := [column for column in COLUMNS if header.count(column) > 1]:
        raise UserError(f"{path} has the column {twice[0]!r} twice; remove one")
    rows = []
    for number, line in enumerate(lines, 1):
        if len(line) != len(header):
            raise UserError(f"{path}, row {number} has {len(line)} fields, the header {len(header)}; quote commas")
        values = {column: value.strip() for column, value in zip(header, line, strict=True) if column in COLUMNS}
        if not values["path"]:
            raise UserError(f"{path}, row {number} has no path; fill it in or remove the row")
        rows.append(TableRow(**values))
    if not rows:
        raise UserError(f"{path} has no rows below its header; list one picture a row")
    name, times = Counter(row.path for row in rows).most_common(1)[0]
    if times > 1:
        raise UserError(f"{path} lists {name} {times} times; list each picture once")
    return rows
