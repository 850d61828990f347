from ..dataset import Dataset, Rng
from .base import Partition, Share, Shares, check_size, random_parts


class Iid(Partition):
    """Every client holds an equal, random part."""

    def __call__(self, dataset: Dataset, clients: int, rng: Rng) -> Shares:
        check_size(dataset, clients)
        train, test = (random_parts(split, clients, rng) for split in (dataset.train, dataset.test))
        return tuple(map(Share, train, test))
