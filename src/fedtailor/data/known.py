"""Labels on some pictures only: which of them count beside those that a labeler makes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ..base.errors import UserError
from ..base.rng import numpy_generator
from .dataset import UNKNOWN, by_label
from .federation import Federation
from .partitions.base import Share


def reveal(federation: Federation, part: float | None, seed: int) -> Federation:
    """The same clients, which know the labels of some of their training pictures.

    `part` of each class, at least one picture, drawn over all clients from those that have a label. None: all labels,
    if there are pictures without one; else none of them, as in the papers on unlabeled clients.
    """
    split, C = federation.dataset.train, len(federation.dataset.classes)
    if part is None:
        known = split.labels != UNKNOWN if split.labels is not None and split.partly else None
        return replace(federation, known=known)
    if split.labels is None:
        raise UserError(f"data.labelled={part}: no training picture of {federation.dataset.name} has a label")
    known, rng = np.zeros(len(split), dtype=np.bool_), numpy_generator(seed, "labelled")
    for members in by_label(split.labels, C):
        known[rng.permutation(members)[: max(round(part * len(members)), 1)]] = True
    return replace(federation, known=known)


def known_alone(federation: Federation) -> Federation:
    """The same clients without the pictures whose labels they do not know."""
    if (known := federation.known) is None:
        return federation
    shares = tuple(Share(share.train[known[share.train]], share.test) for share in federation.shares)
    dataset = federation.dataset
    gone = sum(len(mine.train) for mine in federation.shares) - sum(len(mine.train) for mine in shares)
    note = f"{gone} training pictures whose labels are not known are left out"
    return replace(federation, dataset=replace(dataset, notes=(*dataset.notes, note)), shares=shares, known=None)
