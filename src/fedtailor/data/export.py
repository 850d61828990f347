"""A dealt-out dataset as picture files, a folder for each site: for `fedtailor data split`."""

import csv
import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from ..base.errors import UserError
from ..base.progress import ProgressFn
from .dataset import UNKNOWN, Images, Indices, Split
from .datasets.files import PHOTO, spelled
from .datasets.own import COLUMNS, TableRow
from .federation import Federation

WRITTEN = COLUMNS.index("group")  # columns before it: the split is made, so groups have nothing left to say


def write_sites(
    federation: Federation, out: Path, unlabelled: bool = False, progress: ProgressFn | None = None
) -> dict[str, Any]:
    """Write each client's pictures into `out/site-k`, all test pictures into `out/server`, and a table of sites' files.
    A site's rows are in the order in which its folder is read. `unlabelled` leaves the training labels out."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out} is there already, and not empty; give a new folder, or remove it first")
    if federation.server is not None:
        raise UserError("data.server keeps training images for the server, which no site has; leave it out")
    if federation.held is not None:
        raise UserError("data.validation puts training images in the place of the test set; leave it out")
    if federation.aside:
        raise UserError("data.calibrate keeps training images out of training, which no site would have; leave it out")
    if empty := np.flatnonzero(federation.sizes == 0).tolist():
        fewer = f"fewer clients than {federation.clients}, or another partition"
        raise UserError(f"site-{empty[0]} would have nothing to train on; take {fewer}")
    dataset, unlabelled = federation.dataset, unlabelled or federation.dataset.train.labels is None
    train, test, known = dataset.train, dataset.test, federation.known
    if unlabelled:
        train = replace(train, labels=None)
    elif known is not None and train.labels is not None:
        train = replace(train, labels=np.where(known, train.labels, UNKNOWN))
    names, digits = [spelled(name) for name in dataset.classes], len(str(federation.clients - 1))
    # Some systems take Fox and fox for one folder.
    name, times = Counter(name.casefold() for name in names).most_common(1)[0]
    if times > 1:
        raise UserError(f"{dataset.name} has {times} classes whose folder would be called {name!r}; take other data")
    rows = []
    for k, share in enumerate(federation.shares):
        number = f"{k:0{digits}}"  # a table's sites are numbered in the order of their names
        rows += pieces(train, share.train, names, f"site-{k}", "train", number)
        rows += pieces(test, share.test, names, f"site-{k}", "test", number)
    everything = [*rows, *pieces(test, np.arange(len(test)), names, "server", "test")]
    try:
        for done, (images, index, row) in enumerate(everything, 1):
            path = out / row.path
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(images.read(index)).save(path)
            if progress:
                progress("writing images", done, len(everything))
        for place in (out, out / "server"):
            place.mkdir(exist_ok=True)
            (place / "classes.txt").write_text("".join(f"{name}\n" for name in names), encoding="utf-8")
        with (out / "sites.csv").open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([row[:WRITTEN] for row in (COLUMNS, *(row for _, _, row in rows))])
    except OSError as error:
        raise UserError(f"cannot write into {out}: {error}; remove what is there or give another folder") from error
    settings = [f"data=csv:{out / 'sites.csv'}"]  # its sites are the clients
    settings += [] if federation.clients > 1 else ["data.partition=site", "clients=1"]
    settings += [f"data.template={dataset.template}"] if dataset.template != PHOTO else []
    return {
        "data": dataset.name,
        "out": str(out),
        "clients": federation.clients,
        "classes": dataset.classes,
        "labelled": not unlabelled,
        "train": federation.sizes.tolist(),
        "test": federation.test_sizes.tolist(),
        "server_test": len(test),
        "run": shlex.join(["fedtailor", "run", *settings]),  # the same federation from the files, in one process
    }


def pieces(
    split: Split, held: Indices, names: Sequence[str], place: str, part: str, site: str = ""
) -> list[tuple[Images, int, TableRow]]:
    """One part of one place: its pictures and their rows, in the order in which `folder` reads them."""
    found = []
    for index in held.tolist():
        label = "" if split.labels is None or split.labels[index] == UNKNOWN else names[split.labels[index]]
        where = [place, part, label, f"{index:06}.png"]
        found.append((split.images, index, TableRow("/".join(filter(None, where)), label, part, site)))
    return sorted(found, key=lambda piece: (bool(piece[2].label), piece[2].path.split("/")))
