"""Pictures as people have them, as one dataset: a folder, a table, or several folders, a site each, labelled or not.

What no layout of a folder can say (layout.py), such as sites in different places, or a folder called unlabelled, is
said by a table, whose rows are made here.
"""

import csv
import io
import os
from collections import Counter
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
STEP = 5  # every so many-th picture of a class is held out, where nobody has said what to test on


@dataclass(frozen=True)
class Gathered:
    name: str  # of the dataset, as a run takes it
    dataset: Dataset
    table: tuple[TableRow, ...] = ()  # to be written first, where a folder alone does not say it
    layout: Layout | None = None  # of a folder that says it all
    left_out: int = 0  # pictures that are not used
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
        return mixed(*of_sites(paths), paths, table)
    root = paths[0].absolute()
    if heaps := heap_and_rest(root):
        return mixed(heaps, 0, paths, table)
    layout = own.layout_of(root)
    loose = [row for row in layout.pictures if not row.label and row.split == "train"]
    marked = [row for row in layout.pictures if row.label.lower() in UNLABELLED]
    labelled = len(layout.pictures) - len(loose) - len(marked)
    beside = any(row.label and row.split == "train" for row in layout.pictures)
    if not layout.pictures or marked or (loose and beside) or len(layout.outside) > labelled:
        return mixed(rows_of(root, layout), strays(layout), paths, table)
    name = f"folder:{root}"
    return Gathered(name, own.folder(root), layout=layout, left_out=len(layout.outside))


def of_file(path: Path) -> Gathered:
    if path.suffix.lower() != ".csv":
        raise UserError(f"{path} is no CSV table; give a folder of pictures, or a table (path,label,split,site,group)")
    return Gathered(f"csv:{path}", own.table(path))


def rows_of(root: Path, layout: Layout, site: str = "") -> list[TableRow]:
    """Paths are whole here; pictures outside the class folders, unless they are strays, have no label."""
    placed = [
        TableRow(
            str(root / row.path), "" if row.label.lower() in UNLABELLED else row.label, row.split, site or row.site
        )
        for row in layout.pictures
    ]
    return placed if strays(layout) else placed + [TableRow(str(root / path), site=site) for path in layout.outside]


def strays(layout: Layout) -> int:
    """Pictures outside the class folders, such as a cover picture, where those inside are more."""
    return len(layout.outside) if len(layout.outside) <= sum(bool(row.label) for row in layout.pictures) else 0


def heap_and_rest(root: Path) -> list[TableRow]:
    """Of `unlabelled/…` beside `labelled/<class>/…`; nothing if it is not laid out like that."""
    inner = {entry.name.lower(): entry for entry in visible(root) if entry.is_dir()}
    heap = [folder for name, folder in inner.items() if name in UNLABELLED]
    rest = [folder for name, folder in inner.items() if name in LABELLED]
    if len(heap) != 1 or len(rest) != 1:
        return []
    return [*rows_of(rest[0], own.layout_of(rest[0])), *(TableRow(str(path)) for path in pictures_in(heap[0]))]


def of_sites(folders: Sequence[Path]) -> tuple[list[TableRow], int]:
    """Every folder is a site, by its name. Beside the rows, how many pictures are strays."""
    roots = [folder.absolute() for folder in folders]
    names = [root.name for root in roots]
    if len(set(names)) < len(names):
        names = ["/".join(root.parts[-2:]) for root in roots]
    if len(set(names)) < len(names):
        raise UserError(f"{folders[0]} and others have the same name, by which sites are told apart; rename one")
    found, stray = list[TableRow](), 0
    for root, name in zip(roots, names, strict=True):
        layout = own.layout_of(root)
        if any(row.site for row in layout.pictures):
            raise UserError(f"{root} holds several sites itself; give it alone, or its sites one by one")
        found += rows_of(root, layout, name)
        stray += strays(layout)
    return found, stray


def mixed(rows: list[TableRow], stray: int, paths: Sequence[Path], table: Path) -> Gathered:
    """Labels on some pictures, on all or on none. Where there are too few labels to hold some out for testing, all of
    them are tested on, and the others trained on."""
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
    unused = stray + len(rows) - len(labelled) - len(loose)  # and unlabelled ones of a test part
    parts = {bool(row.split) for row in labelled}
    if loose and not any(row.split in ("test", "val") for row in labelled) and not enough(labelled):
        here = {row.site for row in loose}
        known = all(row.site in here for row in labelled)
        train = [row._replace(split="train") for row in loose]
        tested = [row._replace(split="test", site=row.site if known else "") for row in labelled]
        why = f"a class has fewer than {STEP}, of which none could be held out"
        note = f"{len(loose)} pictures without a label are trained on, {len(labelled)} with one are tested on: {why}"
        return tabled([*train, *tested], table, unused, (note,))
    if len(parts) > 1:
        whole, divided = (next(row.site for row in labelled if bool(row.split) is it) for it in (False, True))
        raise UserError(
            f"{divided} is divided into train and test, {whole} is not; give each site a train/ and a test/, or none"
        )
    split = "train" if True in parts else ""
    return tabled([*labelled, *(row._replace(split=split) for row in loose)], table, unused, ())


def enough(labelled: list[TableRow]) -> bool:
    """Whether every class has a picture that can be held out."""
    return min(Counter(row.label for row in labelled).values()) >= STEP


def tabled(rows: list[TableRow], table: Path, left_out: int, notes: tuple[str, ...]) -> Gathered:
    whole = table.absolute()
    near = [row._replace(path=os.path.relpath(row.path, whole.parent)) for row in rows]
    return Gathered(f"csv:{whole}", own.of_rows(whole, near), tuple(near), None, left_out, notes)


def as_csv(rows: Sequence[TableRow]) -> str:
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows([own.COLUMNS, *rows])
    return out.getvalue()
