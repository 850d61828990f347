"""How good pseudo-labels are, measured by truths that no pass can see."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..core import OWN
from ..data.sets import Indices
from ..labelers.base import INDEX, LABEL
from ..visit import Client
from .round import Round, percent

if TYPE_CHECKING:
    from ..setup import Setup

Quality = dict[str, float | int | None]
Tally = tuple[int, int, int, int]  # labels, right ones, pictures with a label, pictures
Table = tuple[Indices, Indices, Indices, Indices]  # owner and truth of every picture; picture and y of every label


def labels(seen: Round) -> dict[str, Any] | None:
    """Accuracy and coverage of pseudo-labels: all, head to tail, client by client. FedCoPL Sec. 3.3"""
    table = collect(seen.setup, seen.engine.clients)
    if table is None:
        return None
    owner, truth, picture, y = table
    return {
        "overall": quality(truth, picture, y),
        **{name: quality(truth, picture, y, np.isin(truth, some)) for name, some in seen.setup.groups.items()},
        "clients": [quality(truth, picture, y, owner == k) for k in range(seen.setup.run.clients)],
    }


def pseudo_labels(setup: Setup, clients: Mapping[int, Client]) -> Quality | None:
    """The same of all clients together; None where labels are given, or nobody knows the true ones."""
    table = collect(setup, clients)
    return None if table is None else quality(*table[1:])


def collect(setup: Setup, clients: Mapping[int, Client]) -> Table | None:
    """All clients' pictures and labels in one row."""
    truths, shares = setup.federation.dataset.train.labels, setup.federation.shares
    if setup.job.labeler is None or truths is None:
        return None
    sizes = [len(share.train) for share in shares]
    # A pooled method's one holder has all of them, in this order.
    first = {OWN: 0, **dict(enumerate(np.cumsum([0, *sizes[:-1]])))}
    labelled = [k for k in clients if INDEX in clients[k].memory]
    none = np.empty(0, np.int64)
    return (
        np.repeat(np.arange(len(shares)), sizes),
        truths[np.concatenate([share.train for share in shares])],
        np.concatenate([none, *(first[k] + clients[k].memory[INDEX].numpy() for k in labelled)]),
        np.concatenate([none, *(clients[k].memory[LABEL].numpy() for k in labelled)]),
    )


def quality(truth: Indices, picture: Indices, y: Indices, among: NDArray[np.bool_] | None = None) -> Quality:
    """Of labels y of some pictures. A picture with two labels counts twice in accuracy, once in coverage."""
    return in_percent(tally(truth, picture, y, np.ones(len(truth), bool) if among is None else among))


def tally(truth: Indices, picture: Indices, y: Indices, among: NDArray[np.bool_]) -> Tally:
    chosen = among[picture]
    right = int((truth[picture] == y)[chosen].sum())
    return int(chosen.sum()), right, len(np.unique(picture[chosen])), int(among.sum())


def in_percent(counts: Tally) -> Quality:
    labels, right, labelled, samples = counts
    return {
        "accuracy": percent(right, labels),
        "coverage": percent(labelled, samples),
        "labelled": labelled,
        "samples": samples,
    }
