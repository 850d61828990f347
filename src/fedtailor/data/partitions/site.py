import numpy as np

from ...base.errors import UserError
from ..dataset import Dataset, Rng
from .base import Partition, Share, Shares, random_parts


class BySite(Partition):
    """A client is a place the pictures come from. Test pictures without a place are dealt out evenly at random."""

    def names(self, dataset: Dataset) -> tuple[str, ...]:
        sites = np.empty(0, np.int64) if dataset.train.sites is None else dataset.train.sites
        return tuple(dataset.site_names[site] for site in np.unique(sites)) if dataset.site_names else ()

    def __call__(self, dataset: Dataset, clients: int, rng: Rng) -> Shares:
        sites, test_sites = dataset.train.sites, dataset.test.sites
        if sites is None:
            raise UserError(f"partition site needs each picture's site and {dataset.name} does not say; take iid")
        found = np.unique(sites)
        if (count := len(found)) != clients:
            facts = f"{dataset.name} has {count} sites and was to go to {clients} clients"
            todo = f"set clients={count}, or another data.partition, which mixes the sites"
            raise UserError(f"partition site: {facts}; {todo}")
        train = [np.flatnonzero(sites == site) for site in found]
        if test_sites is None:
            return tuple(map(Share, train, random_parts(dataset.test, clients, rng)))
        if strangers := sorted(set(test_sites.tolist()) - set(found.tolist())):
            called = [dataset.site_names[site] if dataset.site_names else f"number {site}" for site in strangers]
            which = f"site {', '.join(called)} of {dataset.name}"
            todo = "move some to train or take the test pictures out"
            raise UserError(f"partition site: {which} has test pictures but none to train on; {todo}")
        return tuple(map(Share, train, [np.flatnonzero(test_sites == site) for site in found]))
