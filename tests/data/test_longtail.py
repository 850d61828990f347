import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from toys import GOLDEN

from fedtailor.data.dataset import histogram
from fedtailor.data.datasets.fashion import ORDER
from fedtailor.data.groups import GROUPS, profile, thin

CASES = json.loads((GOLDEN / "longtail_counts_groups.json").read_text())
MEANS = {"cifar10": (5000, 10, None), "cifar100": (500, 100, None), "fmnist": (6000, 10, ORDER)}


@pytest.mark.parametrize("case", CASES)
def test_the_published_long_tails_and_groups(case: str) -> None:
    """Counts, totals and groups as the authors' code computes them."""
    name, _, factor = case.partition("_IF")
    mean, classes, order = MEANS[name]
    by_rank = profile(mean, classes, float(factor))
    counts = profile(mean, classes, float(factor), order)
    expected = CASES[case]
    assert by_rank.tolist() == expected["counts_by_rank"]
    assert counts.tolist() == expected["counts_by_class"]
    assert counts.sum() == expected["total"]
    capt = GROUPS["capt"](counts)
    assert {group: members.tolist() for group, members in capt.items()} == {
        group: expected[group] for group in ("head", "mid", "tail")
    }
    sizes = [len(members) for _, members in GROUPS["fedpurel"](counts).items()]
    assert sizes == expected["fedpurel_sizes_gt100_21to100_le20"]


def test_one_class_keeps_all() -> None:
    assert profile(30, 1, 100).tolist() == [30]


@given(st.lists(st.integers(0, 9), min_size=2, max_size=6), st.floats(1, 200), st.integers(0, 9))
def test_thinning_keeps_the_counts_or_all_there_is(sizes: list[int], imbalance: float, seed: int) -> None:
    labels = np.repeat(np.arange(len(sizes)), sizes).astype(np.int64)
    counts = profile(len(labels) / len(sizes), len(sizes), imbalance)
    kept = thin(labels, counts, np.random.default_rng(seed))
    assert len(np.unique(kept)) == len(kept)
    assert histogram(labels[kept], len(sizes)).tolist() == np.minimum(counts, sizes).tolist()
    assert kept.tolist() == thin(labels, counts, np.random.default_rng(seed)).tolist()
