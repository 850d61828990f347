"""Label skew: each class is dealt out by Dirichlet shares, without a cap."""

from __future__ import annotations

import numpy as np
from pydantic import Field

from ..dataset import Dataset
from ..longtail import Rng
from .base import Alpha, Deal, Partition, Shares, capped, cut, labels_for


class PlainDirichlet(Partition):
    """ImageNet-LT in FedPuReL: each class is dealt out by Dirichlet shares, without a cap; clients may stay empty."""

    alpha: Alpha = Field(0.1, description="Of the label skew; small is skewed.")

    def __call__(self, dataset: Dataset, clients: int, rng: Rng) -> Shares:
        labels, test_labels = labels_for("dirichlet-plain", dataset, clients)
        dealt = Deal(clients)
        everyone = np.ones(clients, dtype=np.bool_)
        for label in range(len(dataset.classes)):
            shares = capped(self.alpha, everyone, everyone, rng)
            train, test = np.flatnonzero(labels == label), np.flatnonzero(test_labels == label)
            dealt.add(cut(rng.permutation(train), shares), cut(rng.permutation(test), shares))
        return dealt.shares()
