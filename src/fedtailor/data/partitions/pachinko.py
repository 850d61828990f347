import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from ...base.errors import UserError
from ..dataset import Dataset, Rng, by_label
from .base import Alpha, Partition, Share, Shares, Weights, members_for


class Pachinko(Partition):
    """CIFAR-100-LT in CAPT's and FedPuReL's code: every client draws its own mixture of super-classes, then of classes.

    Training and test pictures are drawn from one pool, so that a client's test set follows the same mixture.
    All pools are equally large; what is left over goes to nobody.
    """

    alpha: Alpha = Field(0.1, description="Over super-classes; small is skewed.")
    alpha_fine: Alpha = Field(10.0, title="α_fine", description="Concentration over the classes of a super-class.")

    def __call__(self, dataset: Dataset, clients: int, rng: Rng) -> Shares:
        members, n = members_for("pachinko", dataset, clients), len(dataset.train)
        if dataset.coarse is None:
            raise UserError(f"partition pachinko needs super-classes, {dataset.name} has none; take dirichlet")
        bags = [rng.permutation(np.append(train, test + n)).tolist() for train, test in members]
        left = np.array([len(bag) for bag in bags])  # (C,) pictures still there
        left_coarse = np.bincount(dataset.coarse, left)
        children = by_label(dataset.coarse, len(left_coarse))
        mixtures = [
            (rng.dirichlet([self.alpha] * len(children)), [rng.dirichlet([self.alpha_fine] * len(c)) for c in children])
            for _ in range(clients)
        ]
        drawn = []
        for coarse, fine in mixtures:
            drawn.append(held := np.empty((n + len(dataset.test)) // clients, dtype=np.int64))
            for place in range(len(held)):
                parent = pick(coarse, left_coarse > 0, self.alpha, rng)
                label = children[parent][pick(fine[parent], left[children[parent]] > 0, self.alpha_fine, rng)]
                held[place] = bags[label].pop()
                left[label] -= 1
                left_coarse[parent] -= 1
        # The first had the most to choose from: which clients they are should be chance.
        dealt = [drawn[k] for k in rng.permutation(clients)]
        return tuple(Share(held[held < n], held[held >= n] - n) for held in dealt)


def pick(weights: Weights, available: NDArray[np.bool_], alpha: float, rng: Rng) -> int:
    """An index with that probability, never one of weight zero. What has run out gives its weight to the others, in
    place; where none of them has any (a small α underflows to zero), theirs are drawn anew."""
    weights *= available
    if weights.sum() == 0:
        weights[available] = rng.dirichlet([alpha] * int(available.sum()))
    weights /= weights.sum()
    edges = np.cumsum(weights)
    return int(np.searchsorted(edges / edges[-1], rng.uniform(), side="right"))
