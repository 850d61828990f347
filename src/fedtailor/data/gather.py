"""Pictures as people have them, as one dataset: a folder, a table, or several folders, a site each, labelled or not.

What no layout of a folder can say (layout.py), such as sites in different places, or labels on only some pictures, is
said by a table, whose rows are made here.
"""

import csv
import io
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..base.errors import UserError
from .dataset import Dataset
from .datasets import own
from .datasets.files import SUFFIXES, visible
from .datasets.layout import Layout, pictures_in
from .datasets.own import TableRow

UNLABELLED = frozenset({"unlabelled", "unlabeled", "unsorted", "nolabel", "no_label", "no_labels"})
LABELLED = frozenset({"labelled", "labeled"})


@dataclass(frozen=True)
class Gathered:
    name: str  # of the dataset, as a run takes it
    dataset: Dataset
    table: tuple[TableRow, ...] = ()  # to be written first, where a folder alone does not say it
    layout: Layout | None = None  # of a folder that says it all
    left_out: int = 0  # pictures without a label that are not used
    notes: tuple[str, ...] = ()


def gather(paths: Sequence[Path], table: Path) -> Gathered:
    """The pictures under these paths; `table` is where rows would be written."""
    for path in paths:
        if not path.exists():
            raise UserError(f"{path}: there is no such folder or file; give folders of pictures, or one CSV table")
    if len(paths) == 1 and paths[0].is_file():
        return of_file(paths[0].absolute())
    if files := [path for path in paths if not path.is_dir()]:
        raise UserError(f"{files[0]} is a file; give several folders, a site each, or one CSV table")
    if len(paths) > 1:
        return mixed(of_sites(paths), paths, table)
    root = paths[0].absolute()
    if heaps := heap_and_rest(root):
        return mixed(heaps, paths, table)
    layout = own.layout_of(root)
    loose = [row for row in layout.pictures if not row.label and row.split == "train"]
    marked = [row for row in layout.pictures if row.label.lower() in UNLABELLED]
    labelled = len(layout.pictures) - len(loose) - len(marked)
    beside = any(row.label and row.split == "train" for row in layout.pictures)
    if not layout.pictures or marked or (loose and beside) or len(layout.outside) > labelled:
        return mixed(rows_of(root, layout), paths, table)
    name = f"folder:{root}"
    return Gathered(name, own.folder(root), layout=layout, left_out=len(layout.outside))


def of_file(path: Path) -> Gathered:
    if path.suffix.lower() != ".csv":
        raise UserError(f"{path} is no CSV table; give a folder of pictures, or a table (path,label,split,site,group)")
    return Gathered(f"csv:{path}", own.table(path))


def rows_of(root: Path, layout: Layout, site: str = "") -> list[TableRow]:
    """Paths are whole here; pictures outside the class folders have no label."""
    placed = [
        TableRow(
            str(root / row.path), "" if row.label.lower() in UNLABELLED else row.label, row.split, site or row.site
        )
        for row in layout.pictures
    ]
    return placed + [TableRow(str(root / path), site=site) for path in layout.outside]


def heap_and_rest(root: Path) -> list[TableRow]:
    """Of `unlabelled/…` beside `labelled/<class>/…`; nothing if it is not laid out like that."""
    inner = {entry.name.lower(): entry for entry in visible(root) if entry.is_dir()}
    heap = [folder for name, folder in inner.items() if name in UNLABELLED]
    rest = [folder for name, folder in inner.items() if name in LABELLED]
    if len(heap) != 1 or len(rest) != 1:
        return []
    return [*rows_of(rest[0], own.layout_of(rest[0])), *(TableRow(str(path)) for path in pictures_in(heap[0]))]


def of_sites(folders: Sequence[Path]) -> list[TableRow]:
    """Every folder is a site, by its name."""
    roots = [folder.absolute() for folder in folders]
    names = [root.name for root in roots]
    if len(set(names)) < len(names):
        names = ["/".join(root.parts[-2:]) for root in roots]
    if len(set(names)) < len(names):
        raise UserError(f"{folders[0]} and others have the same name, by which sites are told apart; rename one")
    found = []
    for root, name in zip(roots, names, strict=True):
        layout = own.layout_of(root)
        if any(row.site for row in layout.pictures):
            raise UserError(f"{root} holds several sites itself; give it alone, or its sites one by one")
        found += rows_of(root, layout, name)
    return found


def mixed(rows: list[TableRow], paths: Sequence[Path], table: Path) -> Gathered:
    """Labels on some pictures, on all or on none. There is no training on both kinds: the more decide what is trained
    on, and if these have no labels, the others are tested on."""
    where = ", ".join(map(str, paths))
    if not rows:
        suffixes = ", ".join(sorted(SUFFIXES))
        raise UserError(f"no pictures in {where}; their names must end in {suffixes}")
    labelled = [row for row in rows if row.label]
    if not labelled:
        raise UserError(
            f"none of the {len(rows)} pictures in {where} has a label: they lie in no class folders. A run needs class "
            "names, and some labelled pictures to test with: put a few of each class into labelled/<class>/, the "
            "others into unlabelled/, and give the folder that holds the two. If these folders are classes, give the "
            "folder that holds them"
        )
    loose = [row for row in rows if not row.label and row.split in ("", "train")]
    unused = len(rows) - len(labelled) - len(loose)  # unlabelled ones of a test part
    test = [row for row in labelled if row.split not in ("", "train")]
    if loose and (len(loose) > len(labelled) or len(test) == len(labelled)):
        here = {row.site for row in loose}
        known = all(row.site in here for row in labelled)
        train = [row._replace(split="train") for row in loose]
        tested = [row._replace(split="test", site=row.site if known else "") for row in labelled]
        note = f"{len(loose)} pictures without a label are trained on, {len(labelled)} with one are tested on"
        return tabled([*train, *tested], table, unused, (note,))
    split = {bool(row.split) for row in labelled}
    if len(split) > 1:
        whole, parts = (next(row.site for row in labelled if bool(row.split) is it) for it in (False, True))
        raise UserError(
            f"{parts} is divided into train and test, {whole} is not; give each site a train/ and a test/, or none"
        )
    gone = sorted({row.site for row in rows} - {row.site for row in labelled} - {""})
    without = (f"no picture of {', '.join(gone)} has a label: left out",) if gone else ()
    return tabled(labelled, table, unused + len(loose), without)


def tabled(rows: list[TableRow], table: Path, left_out: int, notes: tuple[str, ...]) -> Gathered:
    whole = table.absolute()
    near = [row._replace(path=os.path.relpath(row.path, whole.parent)) for row in rows]
    return Gathered(f"csv:{whole}", own.of_rows(whole, near), tuple(near), None, left_out, notes)


def as_csv(rows: Sequence[TableRow]) -> str:
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows([own.COLUMNS, *rows])
    return out.getvalue()
