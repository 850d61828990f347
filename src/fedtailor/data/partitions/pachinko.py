from random import Random

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from ...base.errors import UserError
from ..dataset import Dataset, Indices, Rng, by_label
from ..released import ReleasedDraws
from .base import Alpha, Partition, Share, Shares, Weights, members_for


class Pachinko(Partition):
    """CIFAR-100-LT in CAPT's and FedPuReL's code: every client draws its own mixture of super-classes, then of classes.

    Training and test pictures are drawn from one pool, so that a client's test set follows the same mixture.
    All pools are equally large; what is left over goes to nobody.
    """

    alpha: Alpha = Field(0.1, description="Over super-classes; small is skewed.")
    alpha_fine: Alpha = Field(10.0, title="α_fine", description="Concentration over the classes of a super-class.")

    def __call__(self, dataset: Dataset, clients: int, rng: Rng) -> Shares:
        pools, coarse, n = *pooled(dataset, clients), len(dataset.train)
        bags = [rng.permutation(pool).tolist() for pool in pools]
        left = np.array([len(bag) for bag in bags])  # (C,) pictures still there
        left_coarse = np.bincount(coarse, left)
        children = by_label(coarse, len(left_coarse))
        mixtures = [
            (rng.dirichlet([self.alpha] * len(children)), [rng.dirichlet([self.alpha_fine] * len(c)) for c in children])
            for _ in range(clients)
        ]
        drawn = []
        for parents, fine in mixtures:
            drawn.append(held := np.empty((n + len(dataset.test)) // clients, dtype=np.int64))
            for place in range(len(held)):
                parent = pick(parents, left_coarse > 0, self.alpha, rng)
                label = children[parent][pick(fine[parent], left[children[parent]] > 0, self.alpha_fine, rng)]
                held[place] = bags[label].pop()
                left[label] -= 1
                left_coarse[parent] -= 1
        # The first had the most to choose from: which clients they are should be chance.
        return shared_out([drawn[k] for k in rng.permutation(clients)], n)

    def released(self, dataset: Dataset, clients: int, draws: ReleasedDraws) -> Shares:
        """Client by client, each a mixture of what is left by then; numpy draws classes, Python pictures."""
        pools, coarse = pooled(dataset, clients)
        chance, pictures = np.random.RandomState(draws.seed), Random(draws.seed)
        size = len(dataset.train) + len(dataset.test)
        place = np.argsort(pictures.sample(range(size), size))
        bags = [sorted(pool.tolist(), key=place.__getitem__) for pool in pools]
        children = {
            parent: [int(c) for c in own if bags[c]]
            for parent, own in enumerate(by_label(coarse, int(coarse.max()) + 1))
        }
        drawn = []
        for _ in range(clients):
            children = {parent: own for parent, own in children.items() if own}
            parents, weights = list(children), chance.dirichlet(np.full(len(children), self.alpha))
            fine = {parent: chance.dirichlet(np.full(len(own), self.alpha_fine)) for parent, own in children.items()}
            drawn.append(held := np.empty(size // clients, dtype=np.int64))
            for i in range(len(held)):
                first = draw(weights, chance)
                parent = parents[first]
                second = draw(fine[parent], chance)
                bag = bags[children[parent][second]]
                held[i] = bag.pop(pictures.randrange(len(bag)))
                if not bag:
                    children[parent].pop(second)
                    fine[parent] = without(fine[parent], second)
                if not children[parent]:
                    parents.pop(first)
                    weights = without(weights, first)
        draws.python.shuffle(drawn)
        return shared_out(drawn, len(dataset.train))


def pooled(dataset: Dataset, clients: int) -> tuple[list[Indices], Indices]:
    """The pictures of each class, test pictures counted on behind the training ones; and the classes' super-classes."""
    members, n = members_for("pachinko", dataset, clients), len(dataset.train)
    if dataset.coarse is None:
        raise UserError(f"partition pachinko needs super-classes, {dataset.name} has none; take dirichlet")
    return [np.append(train, test + n) for train, test in members], dataset.coarse


def shared_out(drawn: list[Indices], n: int) -> Shares:
    return tuple(Share(held[held < n], held[held >= n] - n) for held in drawn)


def draw(weights: Weights, chance: np.random.RandomState) -> int:
    if not np.isfinite(weights).all():
        todo = "the released code fails here too; take a larger data.alpha or data.draws=own"
        raise UserError(f"partition pachinko: all that is left has weight zero; {todo}")
    return int(chance.multinomial(1, weights).argmax())


def without(weights: Weights, index: int) -> Weights:
    """The other weights, which sum up to 1 again."""
    rest = np.delete(weights, index)
    with np.errstate(invalid="ignore"):
        return np.asarray(rest / rest.sum())


def pick(weights: Weights, available: NDArray[np.bool_], alpha: float, rng: Rng) -> int:
    """An index with that probability, never one of weight zero. What has run out gives its weight to the others, in
    place; where none of them has any (a small α underflows to zero), theirs are drawn anew."""
    weights *= available
    if weights.sum() == 0:
        weights[available] = rng.dirichlet([alpha] * int(available.sum()))
    weights /= weights.sum()
    edges = np.cumsum(weights)
    return int(np.searchsorted(edges / edges[-1], rng.uniform(), side="right"))
