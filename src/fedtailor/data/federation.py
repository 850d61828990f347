"""A dataset and who holds what of it."""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from ..base.errors import UserError
from ..base.names import told_apart
from ..base.rng import numpy_generator
from .dataset import UNKNOWN, Dataset, Indices, Mask, Rng, Split, by_label, histogram
from .partitions.base import Partition, Share, Shares
from .released import ReleasedDraws


@dataclass(frozen=True, eq=False)
class Federation:
    dataset: Dataset
    shares: Shares
    server: Split | None = None  # what the server keeps to validate on; the rest is dealt out
    held: Indices | None = None  # the training pictures that stand in for the test set, if any do
    aside: tuple[Indices, ...] = ()  # each client's training pictures that nothing is trained on: to calibrate by
    names: tuple[str, ...] = ()  # of the clients, if they have some
    known: Mask | None = None  # beside a labeler: the training pictures whose own labels count (known.py); None: none

    def __post_init__(self) -> None:
        for what, size in (("train", len(self.dataset.train)), ("test", len(self.dataset.test))):
            held = np.concatenate([getattr(share, what) for share in self.shares])
            if len(np.unique(held)) != len(held) or (len(held) and not 0 <= held.min() <= held.max() < size):
                raise ValueError(f"{what} shares must hold indices below {size}, each at most once")

    @property
    def clients(self) -> int:
        return len(self.shares)

    def name_of(self, k: int) -> str:
        """What records call a client: by its name, else by its number. Below 0 is the server, with data of its own."""
        return "server" if k < 0 else self.names[k] if self.names else str(k)

    def to_label(self, k: int) -> Indices:
        """A client's training pictures that a labeler may label, of all of them."""
        mine = self.shares[k].train
        return mine if self.known is None else mine[~self.known[mine]]

    def truths(self, k: int) -> Indices | None:
        """What these are, to measure a labeler by; None where somebody would have to look."""
        labels = self.dataset.train.labels
        mine = None if labels is None else labels[self.to_label(k)]
        return None if mine is None or (mine == UNKNOWN).any() else mine

    @cached_property
    def class_names(self) -> tuple[str, ...]:
        """What records call the classes."""
        return told_apart(self.dataset.classes)

    @property
    def sizes(self) -> Indices:
        """(K,) training pictures of each client."""
        return np.array([len(share.train) for share in self.shares], dtype=np.int64)

    @property
    def test_sizes(self) -> Indices:
        return np.array([len(share.test) for share in self.shares], dtype=np.int64)

    @property
    def counts(self) -> Indices:
        """(K, C) training pictures of each client in each class."""
        return self._table(self.dataset.train.labels, [share.train for share in self.shares], "training")

    @property
    def test_counts(self) -> Indices:
        return self._table(self.dataset.test.labels, [share.test for share in self.shares], "test")

    def _table(self, labels: Indices | None, held: list[Indices], what: str) -> Indices:
        if labels is None:
            raise UserError(f"the {what} pictures of {self.dataset.name} have no labels to count them by class")
        return np.stack([histogram(labels[indices], len(self.dataset.classes)) for indices in held])


def federate(
    dataset: Dataset,
    partition: Partition,
    clients: int,
    seed: int,
    server_part: float = 0.0,
    draws: ReleasedDraws | None = None,
) -> Federation:
    """Deal a dataset out, by the seed or by `draws`; `server_part` of the training set stays with the server."""
    if draws and server_part:
        raise UserError(
            f"data.draws=released: its clients hold all pictures, data.server={server_part} keeps some back"
        )
    if draws:
        return Federation(dataset, partition.released(dataset, clients, draws))
    server, train = None, dataset.train
    if server_part:
        if train.labels is None or train.partly:
            lacks = "training pictures without labels" if train.partly else "no training labels to validate with"
            raise UserError(f"data.server={server_part}: {dataset.name} has {lacks}")
        order = numpy_generator(seed, "server").permutation(len(train))
        held = int(server_part * len(order))
        if train.groups is not None:
            order, held = whole_groups(train.groups[order], order, held)
        if not 0 < held < len(order):
            raise UserError(f"data.server={server_part} of {len(order)} training images leaves nothing on one side")
        server, rest = (train.subset(np.sort(part)) for part in (order[:held], order[held:]))
        dataset = replace(dataset, train=rest)
    shares = partition(dataset, clients, numpy_generator(seed, "partition"))
    return Federation(dataset, shares, server, names=partition.names(dataset))


def whole_groups(groups: Indices, order: Indices, held: int) -> tuple[Indices, int]:
    """An order in which a group's pictures, drawn as `groups`, follow its first, and how many to hold so that the last
    group is whole."""
    _, first, which = np.unique(groups, return_index=True, return_inverse=True)
    place = first[which]
    together = np.argsort(place, kind="stable")
    return order[together], int(np.searchsorted(place[together], place[together][max(held - 1, 0)], side="right"))


def set_aside(federation: Federation, part: float, seed: int) -> Federation:
    """The same clients and the same tests, with a part of the training pictures kept to calibrate by."""
    apart = hold_out(federation, part, seed, "calibrate")
    assert apart.held is not None
    shares = tuple(
        Share(theirs.train, share.test) for theirs, share in zip(apart.shares, federation.shares, strict=True)
    )
    return replace(federation, shares=shares, aside=tuple(apart.held[theirs.test] for theirs in apart.shares))


def hold_out(federation: Federation, part: float, seed: int, purpose: str = "validation") -> Federation:
    """The same clients, tested on a part of their training pictures instead of the test set.

    Class by class over all clients: `part` of its pictures, at least one, never all; a class of one picture stays in
    training. A client's last picture of a class is taken only where no client can spare one. Groups stay whole: they
    are drawn until every class has its part, but for those that hold all that is left of one.
    """
    dataset, labels = federation.dataset, federation.dataset.train.labels
    if labels is None:
        raise UserError(f"data.{purpose}={part}: {dataset.name} has no training labels to validate with")
    rng = numpy_generator(seed, purpose)
    owner = np.full(len(labels), -1)
    for k, share in enumerate(federation.shares):
        owner[share.train] = k
    dealt = np.where(owner < 0, UNKNOWN, labels)
    if dataset.train.groups is None:
        held = gone = drawn_pictures(dealt, owner, len(dataset.classes), part, rng)
    else:
        groups = dataset.train.groups
        held = drawn_groups(dealt, groups, len(dataset.classes), part, rng)
        gone = np.flatnonzero(np.isin(groups, groups[held]))  # with what has no label to test by
    shares = tuple(
        Share(np.setdiff1d(share.train, gone, assume_unique=True), np.flatnonzero(owner[held] == k))
        for k, share in enumerate(federation.shares)
    )
    if not len(held) or any(len(share.test) and not len(share.train) for share in shares):
        raise UserError(f"data.{purpose}={part} of {len(labels)} training images leaves nothing on one side")
    return replace(federation, dataset=replace(dataset, test=dataset.train.subset(held)), shares=shares, held=held)


def wanted(size: int, part: float) -> int:
    """How many pictures of a class are held out."""
    return max(min(max(round(part * size), 1), size - 1), 0)


def drawn_pictures(labels: Indices, owner: Indices, classes: int, part: float, rng: Rng) -> Indices:
    taken = []
    for members in by_label(labels, classes):
        order = rng.permutation(members)
        last = np.isin(np.arange(len(order)), np.unique(owner[order], return_index=True)[1])  # one of each client's
        taken.append(order[np.argsort(last, kind="stable")][: wanted(len(order), part)])
    return np.sort(np.concatenate(taken))


def drawn_groups(labels: Indices, groups: Indices, classes: int, part: float, rng: Rng) -> Indices:
    dealt = np.flatnonzero(labels != UNKNOWN)
    left = histogram(labels[dealt], classes)
    due = np.array([wanted(int(size), part) for size in left])
    taken = [dealt[:0]]
    together = by_group(groups[dealt])
    for chosen in rng.permutation(len(together)):
        members = dealt[together[chosen]]
        has = histogram(labels[members], classes)
        if (due[has > 0] > 0).any() and (left > has)[has > 0].all():
            left, due = left - has, due - has
            taken.append(members)
    return np.sort(np.concatenate(taken))


def by_group(groups: Indices) -> list[Indices]:
    """The indices of each group's pictures."""
    order = np.argsort(groups, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(groups[order])) + 1)
