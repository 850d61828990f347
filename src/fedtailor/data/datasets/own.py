"""A user's own pictures: `folder:PATH`, sub-folders for splits, sites and classes, and `csv:PATH`, a table."""

import csv
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ...base.documents import STRAY
from ...base.errors import UserError, shortened
from ..dataset import UNKNOWN, Dataset, Split
from .files import PHOTO, SUFFIXES, class_names, hold_out, listed, read_lines, readable
from .layout import Layout, read_layout, split_of

NAMES = "classes.txt"


def folder(root: Path, otherwise: Sequence[str] = (), must_train: bool = True) -> Dataset:
    """Pictures by their folders (layout.py). `otherwise` are the class names if the folder itself has none. Without
    `must_train`, there may be no pictures."""
    if not root.is_dir():
        raise UserError(f"{root} is not a folder; give the folder that holds train/ and test/, or one folder per class")
    layout, names_file = layout_of(root, otherwise), root / NAMES
    check_heaps(root, layout)
    if layout.outside and not layout.pictures:
        raise UserError(
            f"the {len(layout.outside)} pictures in {root} lie in no class folders; put them into one folder per class "
            "or, without labels, into train/, and some of each class into test/<class>/"
        )
    if not (layout.pictures or layout.classes or layout.splits or otherwise or names_file.is_file()):
        raise UserError(
            f"{root} has no pictures (their names must end in {', '.join(sorted(SUFFIXES))}) and names no classes; "
            f"write their names into {names_file}, a line each, or put pictures into one folder per class"
        )
    if must_train and layout.splits and "train" not in layout.splits:
        there = ", ".join(f"{split}/" for split in sorted(layout.splits))
        raise UserError(f"{root} has {there} but no train/; add train/, or put the class folders straight into {root}")
    names = class_names(names_file, layout.classes, root, otherwise)
    numbers = {name: number for number, name in enumerate(names)}
    rows = [TableRow(p.path, p.label, p.split, p.site) for p in layout.pictures]
    rows.sort(key=lambda row: (row.site, numbers.get(row.label, -1), row.path.split("/")))
    made = dataset_of(f"folder:{root}", root, rows, names, layout.splits, must_train and not otherwise)
    if must_train and not len(made.train):
        raise UserError(f"{root} has no pictures to train on; their names must end in {', '.join(sorted(SUFFIXES))}")
    if not layout.outside:
        return made
    unused = f"{len(layout.outside)} picture(s) outside the class folders are not used ({listing(layout.outside)})"
    return replace(made, notes=(*made.notes, unused))


def listing(names: Sequence[str], most: int = 3) -> str:
    return ", ".join(names[:most]) + (", …" if len(names) > most else "")


def layout_of(root: Path, otherwise: Sequence[str] = ()) -> Layout:
    known = read_lines(root / NAMES) if (root / NAMES).is_file() else otherwise
    return read_layout(root, {readable(name) for name in known})


def check_heaps(root: Path, layout: Layout) -> None:
    """Only training pictures may be without a label."""
    loose = {row.split: row for row in reversed(layout.pictures) if not row.label}
    for split, first in loose.items():
        if split != "train":
            raise UserError(f"{root / first.path} has no label; put {split} pictures into one folder per class")


class TableRow(NamedTuple):
    """One line of the file; a column that is not there reads as empty."""

    path: str
    label: str = ""
    split: str = ""
    site: str = ""
    group: str = ""


COLUMNS = TableRow._fields
ALSO = {"patient": "group", "patient_id": "group"}  # other names of a column


def table(path: Path, otherwise: Sequence[str] = (), must_train: bool = True) -> Dataset:
    """The pictures of a CSV file; `otherwise` are the class names if neither it nor `classes.txt` beside it has any."""
    return of_rows(path, read_rows(path), otherwise, must_train)


def of_rows(path: Path, rows: list[TableRow], otherwise: Sequence[str] = (), must_train: bool = True) -> Dataset:
    """The pictures of a table's rows; the table itself need not be written yet."""
    if filled(path, rows, "split", "data"):
        if wrong := [row for row in rows if not split_of(row.split)]:
            raise UserError(f"{path}: split must be train, test or val, got {wrong[0].split!r} for {wrong[0].path}")
        rows = [row._replace(split=split_of(row.split)) for row in rows]
    splits = {row.split for row in rows} - {""}
    if must_train and splits and "train" not in splits:
        raise UserError(f"{path} has no train rows; write train into the split column of some")
    filled(path, rows, "group", "data")
    names = class_names(path.with_name(NAMES), sorted({row.label for row in rows} - {""}), path, otherwise)
    return dataset_of(f"csv:{path}", path, rows, names, splits, must_train and not otherwise)


def dataset_of(
    name: str, where: Path, rows: list[TableRow], names: list[str], splits: Collection[str], alone: bool
) -> Dataset:
    """Training and test pictures of rows that are in order. Where nobody has set some aside for testing, every fifth of
    a class is; of a place that is not alone, only if it has no training part either. Notes tell what nobody said."""
    numbers = {label: number for number, label in enumerate(names)}
    sites, groups = (sorted({getattr(row, column) for row in rows} - {""}) for column in ("site", "group"))
    for told in (*names, *sites):
        if STRAY.search(told):
            raise UserError(f"{where}: the name {shortened(told)} is not text in UTF-8; rename its folder")
    site_of, group_of = ({value: number for number, value in enumerate(values)} for values in (sites, groups))

    def split(part: list[TableRow], what: str) -> Split:
        # No test rows is an empty labelled split, not an unlabelled one: there is nothing to label.
        some = any(row.label for row in part) if what == training else filled(where, part, "label", what)
        labels = [numbers[row.label] if row.label else UNKNOWN for row in part] if some or not part else None
        places = [site_of[row.site] for row in part] if filled(where, part, "site", what) else None
        together = [group_of[row.group] for row in part] if groups and part else None
        return listed(where if where.is_dir() else where.parent, [row.path for row in part], labels, places, together)

    tested = "test" if "test" in splits or "val" not in splits else "val"
    training = "train" if splits else "data"
    train = split([row for row in rows if row.split in ("train", "")], training)
    test = split([row for row in rows if row.split == tested], tested)
    if test.labels is None:
        raise UserError(f"{where}: the {tested} rows have no labels to test with; label them or make them train rows")
    notes = [f"{len(sites)} sites: {listing(sites)}"] if len(sites) > 1 else []
    if tested == "val":
        notes.append(f"no test pictures: the {len(test)} validation pictures are tested on")
    elif unused := sum(row.split == "val" for row in rows):
        notes.append(f"{unused} validation pictures are not used (data.validation takes its own from the training set)")
    if train.groups is not None and test.groups is not None and len(both := np.intersect1d(train.groups, test.groups)):
        facts = f"{len(both)} group(s) have pictures in train and in {tested}, the first is {groups[both[0]]!r}"
        raise UserError(f"{where}: {facts}; put all pictures of a group on one side, or take out the column split")
    if train.partly:
        without = [row for row in rows if row.split in ("train", "") and not row.label]
        told = f"{len(without)} of {len(train)} training pictures have no label"
        notes.append(f"{told} (the first is {without[0].path})")
    labels = train.labels
    if tested not in splits and labels is not None and len(train) and (alone or not splits):
        rest, held = hold_out(labels, 5, train.sites, train.groups)
        # Of a group that is held out, pictures without a label are neither trained nor tested on.
        train, test = train.subset(rest), train.subset(held[labels[held] != UNKNOWN])
        which = "groups" if groups else "pictures"
        facts = f"every fifth of a class's {which} is held out, {len(test)} of {len(train) + len(test)} pictures"
        notes.append(f"no test pictures: {facts}")
    return Dataset(name, tuple(map(readable, names)), PHOTO, train, test, site_names=tuple(sites), notes=tuple(notes))


def filled(path: Path, rows: list[TableRow], column: str, what: str) -> bool:
    """Whether a column is filled in all these rows rather than in none; anything between is an error."""
    empty = [row for row in rows if not getattr(row, column)]
    if empty and len(empty) < len(rows):
        facts = f"{len(empty)} of {len(rows)} {what} rows have no {column} (the first is {empty[0].path})"
        raise UserError(f"{path}: {facts}; fill it in for all of them or for none")
    return bool(rows) and not empty


def read_rows(path: Path) -> list[TableRow]:
    if not path.is_file():
        known = ", ".join(COLUMNS[1:])
        raise UserError(f"{path} is not a file; give a CSV file with a header: path and, if known, {known}")
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            header, *lines = [line for line in csv.reader(file, strict=True) if line] or [[]]
    except (csv.Error, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not a well-formed CSV file in UTF-8: {error}") from error
    header = [ALSO.get(column.strip().lower(), column.strip()) for column in header]
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
