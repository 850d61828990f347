"""No skew."""

from __future__ import annotations

from ..dataset import Dataset, Rng
from .base import Partition, Shares, check_size, pair, random_parts


class Iid(Partition):
    """Every client holds an equal, random part."""

    def __call__(self, dataset: Dataset, clients: int, rng: Rng) -> Shares:
        check_size(dataset, clients)
        return pair(random_parts(dataset.train, clients, rng), random_parts(dataset.test, clients, rng))
