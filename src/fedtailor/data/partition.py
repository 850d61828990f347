"""Who holds which pictures: the ways the papers deal a dataset out to K clients."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from fedtailor.data.longtail import Rng
from fedtailor.data.sets import Dataset, Indices, Split
from fedtailor.errors import UserError

Weights = NDArray[np.float64]

TRIES = 2000  # a few seconds at CIFAR size; settings that work at all need far fewer


class Share(NamedTuple):
    """What one client holds: indices into the training and the test pictures."""

    train: Indices
    test: Indices


Shares = tuple[Share, ...]


class Partition(Protocol):
    def __call__(self, dataset: Dataset, clients: int, rng: Rng) -> Shares: ...


class Fields(BaseModel):
    """A partition is its hyper-parameters; calling it deals the pictures out."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Dirichlet(Fields):
    """CAPT: each class is dealt out by Dirichlet shares; a client that has its fair number of pictures gets no more."""

    alpha: float = Field(
        0.1,
        gt=0,
        allow_inf_nan=False,
        title="α",
        description="Small is skewed. CAPT, implementation details (0.05, 0.1, 0.5); β in FedCoPL and FedPuReL.",
    )
    min_size: int = Field(
        10, ge=0, title="n_min", description="Fewest pictures a client may hold: 10 in CAPT, 1 in FedPuReL."
    )
    min_test: int | None = Field(
        None, ge=0, title="n_min,test", description="The same for test pictures; as min_size if not given."
    )
    own_test_cap: bool = Field(
        False, description="FedCoPL: test shares are capped by test sizes instead of by train sizes."
    )

    def __call__(self, dataset: Dataset, clients: int, rng: Rng) -> Shares:
        labels, test_labels = labels_of(dataset, "dirichlet")
        enough(dataset, clients, self.min_size)
        min_test = self.min_size if self.min_test is None else self.min_test
        if len(test_labels) == 0:
            min_test = 0
        for _ in range(TRIES):
            dealt = self._deal(labels, test_labels, len(dataset.classes), clients, rng)
            if all(len(train) >= self.min_size and len(test) >= min_test for train, test in dealt):
                for share in dealt:
                    rng.shuffle(share.train)
                    rng.shuffle(share.test)
                return dealt
        raise UserError(
            f"partition dirichlet: in {TRIES} draws with alpha={self.alpha} and {clients} clients there was always "
            f"one with fewer than {self.min_size} training or {min_test} test pictures "
            f"(of {len(labels)} and {len(test_labels)}); raise alpha, lower min_size or min_test, or take fewer clients"
        )

    def _deal(self, labels: Indices, test_labels: Indices, classes: int, clients: int, rng: Rng) -> Shares:
        dealt = Deal(clients)
        for label in range(classes):
            train, test = np.flatnonzero(labels == label), np.flatnonzero(test_labels == label)
            rng.shuffle(train)
            rng.shuffle(test)
            # A class nobody trains on fills nobody up: without this, all may be full already when it comes.
            room = dealt.train_sizes < (len(labels) / clients if len(train) else np.inf)
            test_room = dealt.test_sizes < len(test_labels) / clients if self.own_test_cap and len(test) else room
            shares = capped(self.alpha, room, test_room, rng)
            dealt.add(cut(train, shares * room), cut(test, shares * test_room))
        return dealt.shares()


class PlainDirichlet(Fields):
    """ImageNet-LT in FedPuReL: each class is dealt out by Dirichlet shares, without a cap; clients may stay empty."""

    alpha: float = Field(0.1, gt=0, allow_inf_nan=False, title="α", description="Of the label skew; small is skewed.")

    def __call__(self, dataset: Dataset, clients: int, rng: Rng) -> Shares:
        labels, test_labels = labels_of(dataset, "dirichlet-plain")
        enough(dataset, clients)
        dealt = Deal(clients)
        everyone = np.ones(clients, dtype=np.bool_)
        for label in range(len(dataset.classes)):
            shares = capped(self.alpha, everyone, everyone, rng)
            train, test = np.flatnonzero(labels == label), np.flatnonzero(test_labels == label)
            dealt.add(cut(rng.permutation(train), shares), cut(rng.permutation(test), shares))
        return dealt.shares()


class Quantity(Fields):
    """FedCoPL's quantity skew: a client holds few classes, a class few clients, in uneven amounts."""

    share: float = Field(
        0.2,
        gt=0,
        le=1,
        title="s/C",
        description="FedCoPL, Table 2: a client has s = 0.2·C classes; as released, a class has 0.2·K clients.",
    )
    least: int = Field(10, ge=0, description="Pictures a client gets at least, spread over all classes.")

    def __call__(self, dataset: Dataset, clients: int, rng: Rng) -> Shares:
        labels, test_labels = labels_of(dataset, "quantity")
        enough(dataset, clients)
        C, holders = len(dataset.classes), int(self.share * clients)
        if holders == 0:
            needed = int(np.ceil(1 / self.share))
            raise UserError(f"partition quantity with share={self.share} needs {needed} clients or more, got {clients}")
        left = np.full(clients, self.share * C)
        dealt = Deal(clients)
        for label in range(C):
            chosen = np.flatnonzero(left > 0)[:holders]  # a started quota is used up whole, as released
            if len(chosen) == 0:
                raise UserError(
                    f"partition quantity: share={self.share} leaves class {label} of {C} to nobody; raise share"
                )
            left[chosen] -= 1
            train, test = np.flatnonzero(labels == label), np.flatnonzero(test_labels == label)
            dealt.add_to(
                chosen, self._cut(train, len(chosen), C, clients, rng), self._cut(test, len(chosen), C, clients, rng)
            )
        empty = np.flatnonzero(dealt.train_sizes == 0)
        if len(empty):
            raise UserError(
                f"partition quantity leaves client(s) {', '.join(map(str, empty))} of {clients} without pictures; take "
                f"{clients - len(empty)} clients, or another share than {self.share}"
            )
        return dealt.shares()

    def _cut(self, members: Indices, holders: int, classes: int, clients: int, rng: Rng) -> list[Indices]:
        """Uneven consecutive pieces: all but the last get at most their even part, the last takes the rest."""
        even = len(members) / holders
        low, high = int(min(max(even / clients, self.least / classes), even)), int(even)
        sizes = [int(rng.uniform(low, high)) for _ in range(holders - 1)]
        return np.split(members, np.cumsum(sizes, dtype=np.int64))


class Pachinko(Fields):
    """CIFAR-100-LT in CAPT's and FedPuReL's code: every client draws its own mixture of super-classes, then of classes.

    Training and test pictures are drawn from one pool, so that a client's test set follows the same mixture.
    All pools are equally large; what is left over goes to nobody.
    """

    alpha: float = Field(0.1, gt=0, allow_inf_nan=False, title="α", description="Over super-classes; small is skewed.")
    alpha_fine: float = Field(
        10.0,
        gt=0,
        allow_inf_nan=False,
        title="α_fine",
        description="Concentration over the classes of a super-class.",
    )

    def __call__(self, dataset: Dataset, clients: int, rng: Rng) -> Shares:
        labels, test_labels = labels_of(dataset, "pachinko")
        if dataset.coarse is None:
            raise UserError(
                f"partition pachinko needs super-classes and {dataset.name} has none; take dirichlet, or cifar100"
            )
        enough(dataset, clients)
        pool = Pool(np.concatenate([labels, test_labels]), dataset.coarse, rng)
        mixtures = [Mixture(self.alpha, self.alpha_fine, pool.children, rng) for _ in range(clients)]
        drawn = [
            np.array([mixture.draw(pool, rng) for _ in range(pool.size // clients)], dtype=np.int64)
            for mixture in mixtures
        ]
        # The first clients had the most to choose from: which client that was should be chance.
        return tuple(
            Share(drawn[k][drawn[k] < len(labels)], drawn[k][drawn[k] >= len(labels)] - len(labels))
            for k in rng.permutation(clients)
        )


class Iid(Fields):
    """Every client holds an equal, random part."""

    def __call__(self, dataset: Dataset, clients: int, rng: Rng) -> Shares:
        enough(dataset, clients)
        return pair(random_parts(dataset.train, clients, rng), random_parts(dataset.test, clients, rng))


class Site(Fields):
    """A client is a place the pictures come from. Test pictures without a place are dealt out evenly at random."""

    def __call__(self, dataset: Dataset, clients: int, rng: Rng) -> Shares:
        sites, test_sites = dataset.train.sites, dataset.test.sites
        if sites is None:
            raise UserError(
                f"partition site needs to know each picture's site and {dataset.name} does not say; take iid"
            )
        found = np.unique(sites)
        if len(found) != clients:
            raise UserError(
                f"partition site: {dataset.name} has {len(found)} sites and was to go to {clients} clients; "
                f"set clients={len(found)}"
            )
        if test_sites is None:
            return pair([np.flatnonzero(sites == site) for site in found], random_parts(dataset.test, clients, rng))
        if strangers := sorted(set(test_sites.tolist()) - set(found.tolist())):
            raise UserError(
                f"partition site: site number(s) {', '.join(map(str, strangers))} of {dataset.name} have test pictures "
                "but none to train on; move some to train or take the test pictures out"
            )
        return tuple(Share(np.flatnonzero(sites == site), np.flatnonzero(test_sites == site)) for site in found)


PARTITIONS: dict[str, type[Dirichlet | PlainDirichlet | Quantity | Pachinko | Iid | Site]] = {
    "dirichlet": Dirichlet,
    "dirichlet-plain": PlainDirichlet,
    "quantity": Quantity,
    "pachinko": Pachinko,
    "iid": Iid,
    "site": Site,
}


class Deal:
    """Pieces of classes piling up at K clients."""

    def __init__(self, clients: int) -> None:
        self.clients = clients
        self.train: list[list[Indices]] = [[] for _ in range(clients)]
        self.test: list[list[Indices]] = [[] for _ in range(clients)]
        self.train_sizes = np.zeros(clients, dtype=np.int64)
        self.test_sizes = np.zeros(clients, dtype=np.int64)

    def add(self, train: list[Indices], test: list[Indices]) -> None:
        self.add_to(np.arange(self.clients), train, test)

    def add_to(self, receivers: Indices, train: list[Indices], test: list[Indices]) -> None:
        for client, more, more_test in zip(receivers, train, test, strict=True):
            self.train[client].append(more)
            self.test[client].append(more_test)
            self.train_sizes[client] += len(more)
            self.test_sizes[client] += len(more_test)

    def shares(self) -> Shares:
        nothing = np.empty(0, dtype=np.int64)
        return pair(
            [np.concatenate([nothing, *pieces]) for pieces in self.train],
            [np.concatenate([nothing, *pieces]) for pieces in self.test],
        )


class Pool:
    """Pictures to draw from without putting back, by class, and which labels still have any."""

    def __init__(self, labels: Indices, coarse: Indices, rng: Rng) -> None:
        self.size = len(labels)
        self.coarse = coarse
        self.children = [np.flatnonzero(coarse == parent) for parent in range(int(coarse.max()) + 1)]
        self.left: list[list[int]] = [
            rng.permutation(np.flatnonzero(labels == label)).tolist() for label in range(len(coarse))
        ]
        self.has = np.array([len(left) > 0 for left in self.left])  # (C,)
        self.has_any = np.array([bool(self.has[members].any()) for members in self.children])

    def take(self, label: int) -> int:
        picture = self.left[label].pop()
        if not self.left[label]:
            parent = int(self.coarse[label])
            self.has[label] = False
            self.has_any[parent] = self.has[self.children[parent]].any()
        return picture


class Mixture:
    """One client's taste: weights over super-classes, and over the classes of each."""

    def __init__(self, alpha: float, alpha_fine: float, children: list[Indices], rng: Rng) -> None:
        self.alpha, self.alpha_fine = alpha, alpha_fine
        self.coarse: Weights = rng.dirichlet(np.full(len(children), alpha))
        self.fine: list[Weights] = [rng.dirichlet(np.full(len(members), alpha_fine)) for members in children]

    def draw(self, pool: Pool, rng: Rng) -> int:
        """One picture; labels that have run out give their weight to the others."""
        self.coarse = renormalised(self.coarse, pool.has_any, self.alpha, rng)
        parent = pick(self.coarse, rng)
        members = pool.children[parent]
        self.fine[parent] = renormalised(self.fine[parent], pool.has[members], self.alpha_fine, rng)
        return pool.take(int(members[pick(self.fine[parent], rng)]))


def capped(alpha: float, room: NDArray[np.bool_], test_room: NDArray[np.bool_], rng: Rng) -> Weights:
    """Dirichlet shares that put some weight on clients with room; drawn again where all of it falls on full ones."""
    for _ in range(TRIES):
        shares: Weights = rng.dirichlet(np.full(len(room), alpha))
        if (shares * room).sum() > 0 and (shares * test_room).sum() > 0:
            return shares
    raise UserError(f"partition dirichlet: alpha={alpha} puts every class on one full client; raise alpha")


def renormalised(weights: Weights, available: NDArray[np.bool_], alpha: float, rng: Rng) -> Weights:
    """The weights of what is available; drawn anew over it where none is left (a small α underflows to zero)."""
    kept: Weights = weights * available
    if kept.sum() == 0:
        kept = np.zeros_like(weights)
        kept[available] = rng.dirichlet(np.full(int(available.sum()), alpha))
    kept /= kept.sum()
    return kept


def pick(weights: Weights, rng: Rng) -> int:
    """An index with that probability, never one of weight zero."""
    edges = np.cumsum(weights)
    return int(np.searchsorted(edges / edges[-1], rng.uniform(), side="right"))


def cut(members: Indices, weights: Weights) -> list[Indices]:
    """Consecutive pieces in proportion to the weights, rounded down at each edge."""
    edges = np.cumsum(weights / weights.sum()) * len(members)
    return np.split(members, edges.astype(np.int64)[:-1])


def random_parts(split: Split, clients: int, rng: Rng) -> list[Indices]:
    return np.array_split(rng.permutation(len(split)).astype(np.int64), clients)


def pair(train: list[Indices], test: list[Indices]) -> Shares:
    return tuple(Share(*both) for both in zip(train, test, strict=True))


def labels_of(dataset: Dataset, partition: str) -> tuple[Indices, Indices]:
    labels, test_labels = dataset.train.labels, dataset.test.labels
    if labels is None or test_labels is None:
        which = "training" if labels is None else "test"
        raise UserError(
            f"partition {partition} needs labels and the {which} pictures of {dataset.name} have none; take iid or site"
        )
    return labels, test_labels


def enough(dataset: Dataset, clients: int, least: int = 1) -> None:
    pictures, least = len(dataset.train), max(least, 1)
    if clients < 1:
        raise UserError(f"clients must be 1 or more, got {clients}")
    if clients * least > pictures:
        raise UserError(
            f"{clients} clients with {least} picture(s) or more each need {clients * least} to train on, "
            f"{dataset.name} has {pictures}; take {pictures // least} clients or fewer"
        )
