"""What partitions share."""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Annotated, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from ...base.errors import UserError
from ..dataset import Dataset, Indices, Rng, Split, by_label
from ..released import ReleasedDraws

Weights = NDArray[np.float64]
Alpha = Annotated[float, Field(gt=0, allow_inf_nan=False, title="α")]

TRIES = 2000  # seconds to a minute; settings that work at all need far fewer


class Share(NamedTuple):
    """What one client holds: indices into the training and the test pictures."""

    train: Indices
    test: Indices


NOTHING = Share(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64))
Shares = tuple[Share, ...]


class Partition(BaseModel, ABC):
    """A partition is its settings; calling it deals a dataset out to clients."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @abstractmethod
    def __call__(self, dataset: Dataset, clients: int, rng: Rng) -> Shares: ...

    def names(self, dataset: Dataset) -> tuple[str, ...]:
        """The clients' names, if they have some besides their numbers."""
        return ()

    def released(self, dataset: Dataset, clients: int, draws: ReleasedDraws) -> Shares:
        """The very clients of the codes that deal in this way, draw by draw."""
        raise UserError(
            "data.draws=released: no released code is known to deal like data.partition="
            f"{type(self).__name__.lower()}; take dirichlet, quantity or pachinko, or data.draws=own"
        )


def deal(shares: list[Share], receivers: Iterable[int], train: list[Indices], test: list[Indices]) -> None:
    """Give each receiver, in order, a piece of either list, behind what it has."""
    for client, *pieces in zip(receivers, train, test, strict=True):
        shares[client] = Share(*map(np.append, shares[client], pieces))


def capped(alpha: float, room: NDArray[np.bool_], test_room: NDArray[np.bool_], rng: Rng) -> Weights:
    """Dirichlet shares that give some weight to clients with room; drawn again if only full ones get any."""
    for _ in range(TRIES):
        shares: Weights = rng.dirichlet(np.full(len(room), alpha))
        if (shares * room).sum() > 0 and (shares * test_room).sum() > 0:
            return shares
    raise UserError(f"partition dirichlet: alpha={alpha} puts every class on one full client; raise alpha")


def cut(members: Indices, weights: Weights) -> list[Indices]:
    """Consecutive pieces in proportion to the weights, rounded down at each edge."""
    edges = np.cumsum(weights / weights.sum()) * len(members)
    return np.split(members, edges.astype(np.int64)[:-1])


def random_parts(split: Split, clients: int, rng: Rng) -> list[Indices]:
    return np.array_split(rng.permutation(len(split)).astype(np.int64), clients)


def members_for(
    name: str, dataset: Dataset, clients: int, least: int = 1, least_test: int = 0
) -> list[tuple[Indices, Indices]]:
    """The training and the test pictures of each class. The partition of that name needs labels of both."""
    C, labels, test_labels = len(dataset.classes), dataset.train.labels, dataset.test.labels
    if labels is None or test_labels is None or dataset.train.partly:
        some = "some of " if labels is not None and dataset.train.partly else ""
        which = f"{some}the {'training' if labels is None or some else 'test'} pictures of {dataset.name}"
        raise UserError(f"partition {name} needs labels and {which} have none; take iid or site")
    check_size(dataset, clients, least, least_test)
    return list(zip(by_label(labels, C), by_label(test_labels, C), strict=True))


def check_size(dataset: Dataset, clients: int, least: int = 1, least_test: int = 0) -> None:
    """Whether there are enough pictures for all, before anything is drawn."""
    if clients < 1:
        raise UserError(f"clients must be 1 or more, got {clients}")
    for pictures, each, what, key in (
        (len(dataset.train), max(least, 1), "to train on", "min_size"),
        (len(dataset.test), least_test, "to test on", "min_test"),
    ):
        if clients * each > pictures:
            needed = f"{clients} clients with {each} picture(s) or more each need {clients * each} {what}"
            fewer = f"take {pictures // each} clients or fewer" if pictures >= each else ""
            lower = f"lower data.{key}" if each > 1 else ""
            todo = ", or ".join(filter(None, [fewer, lower])) or "add pictures"
            raise UserError(f"{needed}, {dataset.name} has {pictures}; {todo}")
