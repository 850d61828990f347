"""Labels on some pictures only: how they are read, drawn, dealt out and held out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from toys import blank, paint, toy, write

from conftest import Call
from fedtailor.base.errors import UserError
from fedtailor.base.rng import numpy_generator
from fedtailor.data import open_dataset, with_classes
from fedtailor.data.dataset import Dataset, Indices
from fedtailor.data.datasets.own import folder, table
from fedtailor.data.federation import Federation, federate, hold_out
from fedtailor.data.known import known_alone, reveal
from fedtailor.data.partitions import PARTITIONS
from fedtailor.data.partitions.base import Share
from fedtailor.remote.policy import without_rare
from fedtailor.settings.run import make_run
from fedtailor.simulation.build import build


def labels_of(dataset: Dataset) -> Indices:
    assert dataset.train.labels is not None
    return dataset.train.labels


def hidden(dataset: Dataset, *which: int) -> Dataset:
    """Without the labels of these training pictures."""
    labels = labels_of(dataset).copy()
    labels[list(which)] = -1
    return replace(dataset, train=replace(dataset.train, labels=labels))


def two_clients(dataset: Dataset) -> Federation:
    half, none = len(dataset.train) // 2, np.empty(0, np.int64)
    every = np.arange(len(dataset.train))
    return Federation(dataset, (Share(every[:half], none), Share(every[half:], none)))


def test_a_folder(tmp_path: Path) -> None:
    """Pictures straight in train/ beside class folders; they come first, and are no class of their own."""
    for name in ("fox/a.png", "fox/b.png", "owl/c.png", "z.png"):
        paint(tmp_path / "train" / name)
    paint(tmp_path / "test/owl/t.png")
    made = folder(tmp_path)
    assert made.classes == ("fox", "owl")
    assert labels_of(made).tolist() == [-1, 0, 0, 1]
    assert made.notes == ("1 of 4 training pictures have no label (the first is train/z.png)",)


def test_a_table_without_a_split(tmp_path: Path) -> None:
    """Only what has a label can be tested on; the test is on labelled pictures, all others are trained on."""
    write(tmp_path / "list.csv", "path,label", *(f"{i}.jpg,{'fox' if i % 2 else ''}" for i in range(20)))
    write(tmp_path / "classes.txt", "fox", "owl")
    made = table(tmp_path / "list.csv")
    assert (len(made.train), len(made.test)) == (18, 2)
    assert made.test.labels is not None
    assert made.test.labels.tolist() == [0, 0]
    assert sorted(labels_of(made).tolist()) == [-1] * 10 + [0] * 8


def test_groups_do_not_cross_the_split(tmp_path: Path) -> None:
    """A patient's pictures without a label are not trained on if her others are tested on."""
    lines = [f"{i}.jpg,{'' if i % 3 == 2 else 'fox'},p{i // 3}" for i in range(30)]  # ten patients, the third has none
    write(tmp_path / "list.csv", "path,label,group", *lines)
    write(tmp_path / "classes.txt", "fox", "owl")
    made = table(tmp_path / "list.csv")
    assert made.train.groups is not None
    assert made.test.groups is not None
    assert not set(made.train.groups.tolist()) & set(made.test.groups.tolist())
    assert (len(made.train), len(made.test)) == (24, 4)


def test_classes_are_renumbered_and_what_has_none_stays() -> None:
    made = with_classes(hidden(toy([2, 2], [1, 1]), 1), ["kind 1", "other", "kind 0"])
    assert labels_of(made).tolist() == [2, -1, 0, 0]


def test_rare_classes_are_left_out_and_what_has_no_label_stays() -> None:
    made = without_rare(hidden(toy([3, 1, 2], [1, 1, 1]), 0).train, 3, 2)
    assert made.labels is not None
    assert made.labels.tolist() == [-1, 0, 0, 2, 2]


@pytest.mark.parametrize("name", sorted(set(PARTITIONS) - {"iid", "site"}))
def test_only_iid_and_site_deal_them(name: str) -> None:
    some = hidden(toy([20, 20], [5, 5], coarse=[0, 0]), 3)
    with pytest.raises(UserError, match=f"partition {name} needs labels and some of the training pictures of toy have"):
        PARTITIONS[name]()(some, 2, numpy_generator(0, "x"))
    made = federate(some, PARTITIONS["iid"](), 2, 0)
    assert made.counts.sum() == 39
    assert made.sizes.sum() == 40


def test_what_counts_or_thins_by_class_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="training pictures without labels"):
        federate(hidden(toy([20, 20], [5, 5]), 3), PARTITIONS["iid"](), 2, 0, server_part=0.2)
    for name in ("a.png", "fox/b.png"):
        paint(tmp_path / "train" / name)
    with pytest.raises(UserError, match=r"some of the training pictures of .* have no labels to thin by"):
        open_dataset(f"folder:{tmp_path}", most=1)


def test_validation_takes_labelled_pictures_alone() -> None:
    whole = two_clients(hidden(toy([10, 10], [1, 1]), 0, 1, 2, 15))
    made = hold_out(whole, 0.2, 0)
    assert made.held is not None
    assert not set(made.held) & {0, 1, 2, 15}
    assert sum(len(share.train) for share in made.shares) == 20 - len(made.held)


def test_validation_by_groups_leaves_no_unlabelled_one_behind() -> None:
    dataset = hidden(toy([10, 10], [1, 1]), *range(0, 20, 5))
    train = replace(dataset.train, groups=np.arange(20) // 5)  # four groups, the first of each has no label
    made = hold_out(two_clients(replace(dataset, train=train)), 0.3, 0)
    assert made.held is not None
    tested = set((made.held // 5).tolist())
    trained = {int(i) // 5 for share in made.shares for i in share.train}
    assert tested
    assert not tested & trained


def test_all_labels_count_where_some_pictures_have_none() -> None:
    assert reveal(two_clients(toy([3, 3], [1, 1])), None, 0).known is None, "as in the papers"
    made = reveal(two_clients(hidden(toy([3, 3], [1, 1]), 1, 4)), None, 0)
    assert made.known is not None
    assert np.flatnonzero(~made.known).tolist() == [1, 4]
    assert made.to_label(0).tolist() == [1]
    assert made.truths(0) is None, "nobody knows"


def test_a_part_of_the_labels() -> None:
    whole = two_clients(hidden(toy([40, 10, 2], [1, 1, 1]), 0))
    made = reveal(whole, 0.1, 0)
    assert made.known is not None
    assert np.bincount(labels_of(whole.dataset)[made.known], minlength=3).tolist() == [4, 1, 1]
    assert np.array_equal(made.known, np.asarray(reveal(whole, 0.1, 0).known))
    assert not np.array_equal(made.known, np.asarray(reveal(whole, 0.1, 1).known))
    one = made.to_label(1)
    assert np.array_equal(np.asarray(made.truths(1)), labels_of(whole.dataset)[one])
    with pytest.raises(UserError, match=r"data\.labelled=0\.1: no training picture of toy has a label"):
        reveal(two_clients(replace(whole.dataset, train=replace(whole.dataset.train, labels=None))), 0.1, 0)


def test_known_ones_alone() -> None:
    whole = reveal(two_clients(toy([20, 20], [1, 1])), 0.2, 3)
    made = known_alone(whole)
    assert made.counts.sum(0).tolist() == [4, 4]
    assert known_alone(made) is made


def test_given_labels_are_to_be_given(tmp_path: Path) -> None:
    """A label that was forgotten does not turn into a picture that is left out."""
    for name in ("a.png", "fox/b.png", "owl/b.png"):
        paint(tmp_path / "train" / name, size=(32, 32))
    for name in ("fox/b.png", "owl/b.png"):
        paint(tmp_path / "test" / name, size=(32, 32))
    data = {"data": f"folder:{tmp_path}", "data.partition": "iid", "clients": 1}
    with pytest.raises(UserError, match=r"1 of the 3 training pictures of .* have no label.*labels=copl"):
        build(make_run("promptfl", data))
    labels = build(make_run("promptfl", {**data, "labels": "copl"})).client_data[0].labels
    assert sorted(labels.tolist()) == [-1, 0, 1]
    without = build(make_run("promptfl", {**data, "data.labelled": 1}))
    assert sorted(without.client_data[0].labels.tolist()) == [0, 1]
    assert without.federation.dataset.notes[-1] == "1 training pictures whose labels are not known are left out"


def test_a_split_into_sites_keeps_what_is_known(tmp_path: Path, call: Call) -> None:
    """The same pictures with the same labels, in folders."""
    words = "data=drawn", "data.most=10", "data.labelled=0.3", "data.partition=iid", "clients=2"
    call("data", "split", *words, "labels=copl", "--out", str(tmp_path / "sites"))
    dataset = folder(tmp_path / "sites/site-0")
    assert dataset.train.partly
    known = sum(int((labels_of(folder(tmp_path / f"sites/site-{k}")) >= 0).sum()) for k in range(2))
    assert known == 3 * len(dataset.classes)


def test_blank() -> None:
    """No pictures are not partly labelled."""
    assert not replace(toy([1], [1]).train, images=blank(0), labels=np.empty(0, np.int64)).partly
