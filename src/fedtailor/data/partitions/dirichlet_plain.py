import numpy as np
from pydantic import Field

from ..dataset import Dataset, Rng
from .base import NOTHING, Alpha, Partition, Shares, capped, cut, deal, members_for


class PlainDirichlet(Partition):
    """ImageNet-LT in FedPuReL: each class is dealt out by Dirichlet shares, without a cap; clients may stay empty."""

    alpha: Alpha = Field(0.1, description="Of the label skew; small is skewed.")

    def __call__(self, dataset: Dataset, clients: int, rng: Rng) -> Shares:
        members = members_for("dirichlet-plain", dataset, clients)
        dealt, everyone = [NOTHING] * clients, np.ones(clients, dtype=np.bool_)
        for train, test in members:
            shares = capped(self.alpha, everyone, everyone, rng)
            deal(dealt, range(clients), cut(rng.permutation(train), shares), cut(rng.permutation(test), shares))
        return tuple(dealt)
