"""`csv:PATH`: a user's own pictures, listed in a CSV file: path and, as far as known, label, split and site."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from pathlib import Path

import numpy as np

from ...base.errors import UserError
from ..dataset import Dataset, Split
from .files import PHOTO, class_names, hold_out, listed, readable


@dataclass(frozen=True)
class TableRow:
    """One line of the file; a column that is not there reads as empty."""

    path: str
    label: str = ""
    split: str = ""
    site: str = ""


COLUMNS = tuple(field.name for field in fields(TableRow))


def table(path: Path, otherwise: Sequence[str] = (), must_train: bool = True) -> Dataset:
    """The pictures of a CSV file; `otherwise` are the class names if neither it nor `classes.txt` beside it has any."""
    rows = read_rows(path)
    train, test = divided(path, rows)
    if must_train and not train:
        raise UserError(f"{path} has no train rows; write train into the split column of some")
    if test and not filled(path, test, "label", "test"):
        raise UserError(f"{path}: the test rows have no labels to test with; label them or make them train rows")
    found = sorted({row.label for row in rows if row.label})
    names = class_names(path.with_name("classes.txt"), found, path, otherwise)
    numbers = {name: number for number, name in enumerate(names)}
    sites = {site: number for number, site in enumerate(sorted({row.site for row in rows if row.site}))}

    def split(part: list[TableRow], what: str) -> Split:
        known = filled(path, part, "label", what)
        # No test rows is an empty labelled split, not an unlabelled one: there is nothing to label.
        labels = [numbers[row.label] for row in part] if known or not part else None
        made = listed(path.parent, [row.path for row in part], labels)
        if not filled(path, part, "site", what):
            return made
        return replace(made, sites=np.array([sites[row.site] for row in part], dtype=np.int64))

    return Dataset(f"csv:{path}", tuple(map(readable, names)), PHOTO, split(train, "train"), split(test, "test"))


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
        raise UserError(
            f"{path}: {len(empty)} of {len(rows)} {what} rows have no {column} (the first is {empty[0].path}); "
            "fill it in for all of them or for none"
        )
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
    check_header(path, header)
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


def check_header(path: Path, header: list[str]) -> None:
    # Users may have columns of their own, but a misspelt one would silently mean "unlabelled".
    for column in header:
        near = get_close_matches(column.lower(), COLUMNS, n=1, cutoff=0.75)
        if column not in COLUMNS and near and near[0] not in header:
            raise UserError(f"{path}: unknown column {column!r}; did you mean {near[0]!r}?")
    if "path" not in header:
        raise UserError(f"{path} has no column 'path' with the pictures' files, only {', '.join(header)!r}; add it")
    if twice := [column for column in COLUMNS if header.count(column) > 1]:
        raise UserError(f"{path} has the column {twice[0]!r} twice; remove one")
