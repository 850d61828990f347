import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fedtailor.data.groups import GROUPS, Groups, profile


def sizes(groups: object) -> list[int]:
    return [len(members) for _, members in groups.items()]  # type: ignore[attr-defined]


def test_the_three_rules_on_cifar10_lt() -> None:
    """IF 100; 75 % of 12406 is 9304.5 and the running totals are 5000, 7997, 9793, …"""
    counts = profile(5000, 10, 100)
    assert sizes(GROUPS["capt"](counts)) == [2, 3, 5]
    assert sizes(GROUPS["fedloge"](counts)) == [3, 3, 4]
    assert sizes(GROUPS["fedpurel"](counts)) == [8, 2, 0]


def test_names_follow_the_classes() -> None:
    assert GROUPS["fedpurel"](np.array([20, 101, 21])).names == ("tail", "head", "mid")


@given(st.lists(st.integers(0, 500), min_size=1, max_size=30), st.sampled_from(sorted(GROUPS)))
def test_every_class_is_in_one_group_and_larger_ones_come_first(counts: list[int], rule: str) -> None:
    array = np.array(counts, dtype=np.int64)
    groups = GROUPS[rule](array)
    assert sorted(np.concatenate([members for _, members in groups.items()]).tolist()) == list(range(len(counts)))
    rank = {"head": 0, "mid": 1, "tail": 2}
    ranks = [rank[groups.names[label]] for label in np.argsort(-array, kind="stable")]
    assert ranks == sorted(ranks)


def test_unlabelled_classes_are_in_no_group() -> None:
    """Nobody can say which classes are rare: no head, no tail, yet all classes are there."""
    groups = Groups.nowhere(4)
    assert groups.classes == 4
    assert all(len(members) == 0 for _, members in groups.items())
    assert groups.names == ("",) * 4
