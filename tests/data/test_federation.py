from dataclasses import replace

import numpy as np
import pytest
from toys import toy

from fedtailor.base.errors import UserError
from fedtailor.data.dataset import Split
from fedtailor.data.federation import Federation, federate
from fedtailor.data.partitions.base import Share
from fedtailor.data.partitions.iid import Iid


def test_counts_are_clients_by_classes() -> None:
    shares = (Share(np.array([0, 3]), np.array([1])), Share(np.array([1, 2]), np.array([0])))
    federation = Federation(toy([3, 1], [1, 1]), shares)
    assert federation.clients == 2
    assert federation.counts.tolist() == [[1, 1], [2, 0]]
    assert federation.test_counts.tolist() == [[0, 1], [1, 0]]
    assert (federation.sizes.tolist(), federation.test_sizes.tolist()) == ([2, 2], [1, 1])


def test_a_picture_held_twice_or_not_there_is_refused() -> None:
    nothing = np.empty(0, dtype=np.int64)
    for held in (np.array([0, 0]), np.array([4])):
        with pytest.raises(ValueError, match="at most once"):
            Federation(toy([3], [1]), (Share(held, nothing),))


def test_unlabelled_pictures_have_sizes_but_no_counts() -> None:
    dataset = toy([4], [4])
    federation = federate(replace(dataset, train=Split(dataset.train.images, None)), Iid(), 2, 0)
    assert federation.sizes.tolist() == [2, 2]
    with pytest.raises(UserError, match="have no labels"):
        _ = federation.counts


def test_the_servers_part_is_taken_off_before_dealing() -> None:
    """A fifth stays with the server, the same one for the same seed; clients and server together have everything."""
    dataset = toy([12, 8, 5], [2, 2, 2])
    found = federate(dataset, Iid(), 3, seed=1, server_part=0.2)
    assert found.server is not None
    n = len(dataset.train)
    assert len(found.server) == int(0.2 * n)
    assert len(found.dataset.train) == n - int(0.2 * n) == found.sizes.sum()
    assert found.server.labels is not None
    assert found.dataset.train.labels is not None
    together = np.concatenate([found.server.labels, found.dataset.train.labels])
    assert sorted(together) == sorted(dataset.train.labels)  # type: ignore[arg-type]
    again = federate(dataset, Iid(), 3, seed=1, server_part=0.2).server
    assert again is not None
    assert again.images.fingerprint == found.server.images.fingerprint
    with pytest.raises(UserError, match="leaves nothing on one side"):
        federate(dataset, Iid(), 3, seed=1, server_part=1e-6)
    bare = replace(dataset, train=replace(dataset.train, labels=None))
    with pytest.raises(UserError, match="no training labels to validate with"):
        federate(bare, Iid(), 3, seed=1, server_part=0.2)
