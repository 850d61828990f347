from dataclasses import replace

import numpy as np
import pytest
from toys import toy

from fedtailor.data.federation import Federation, federate
from fedtailor.data.partition import Iid, Share
from fedtailor.data.sets import Split
from fedtailor.errors import UserError


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
