"""How good pseudo-labels are, measured against true labels that no pass can see."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from ..client.job import ClientState
from ..core.types import OWN
from ..data.dataset import Indices
from ..data.federation import Federation
from ..labelers.base import INDEX, LABEL
from .metrics import percent

Quality = dict[str, float | int | None]
Tally = tuple[int, int, int, int]  # labels, right ones, pictures with a label, pictures
Table = tuple[Indices, Indices, Indices, Indices]  # owner and truth of every picture; picture and y of every label


def pseudo_label_quality(federation: Federation, clients: Mapping[int, ClientState]) -> Quality | None:
    """Of all clients together; None where nobody knows the true labels."""
    table = collect(federation, clients)
    return None if table is None else quality(*table[1:])


def collect(federation: Federation, clients: Mapping[int, ClientState]) -> Table | None:
    """All clients' pictures that need a label and those that they got, one client after the other."""
    truths = [federation.truths(k) for k in range(federation.clients)]
    known = [some for some in truths if some is not None]
    if len(known) < len(truths):
        return None
    sizes = [len(some) for some in known]
    # The server's own data, where a method pools everyone's, is all of them in this order.
    first = {OWN: 0, **dict(enumerate(np.cumsum([0, *sizes[:-1]])))}
    labelled = [k for k in clients if INDEX in clients[k].memory]
    none = np.empty(0, np.int64)
    return (
        np.repeat(np.arange(len(known)), sizes),
        np.concatenate(known),
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
    rates = {"accuracy": percent(right, labels), "coverage": percent(labelled, samples)}
    return {**rates, "labelled": labelled, "samples": samples}
