"""Validation: a part of the clients' training pictures in the place of the test set."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedtailor
from conftest import Call
from fedtailor.base.errors import UserError
from fedtailor.data.dataset import ArrayImages, Dataset, Split
from fedtailor.data.export import write_sites
from fedtailor.data.federation import Federation, hold_out
from fedtailor.data.partitions.base import Share
from fedtailor.settings.run import make_run
from fedtailor.simulation.build import build, deal


def federation(cells: list[list[int]]) -> Federation:
    """Clients with so many pictures of each class; the test set has one of each."""
    C = len(cells[0])
    labels = np.concatenate([np.repeat(np.arange(C), row) for row in cells]).astype(np.int64)
    ends = np.cumsum([sum(row) for row in cells])
    pictures = np.arange(len(labels) * 3, dtype=np.uint8).reshape(-1, 1, 1, 3)
    test = Split(ArrayImages(np.zeros((C, 1, 1, 3), np.uint8)), np.arange(C))
    dataset = Dataset("it", tuple("abcdefgh"[:C]), "{}", Split(ArrayImages(pictures), labels), test)
    shares = [Share(part, np.empty(0, np.int64)) for part in np.split(np.arange(len(labels)), ends[:-1])]
    return Federation(dataset, tuple(shares))


@given(st.lists(st.lists(st.integers(0, 9), min_size=4, max_size=4), min_size=2, max_size=5), st.integers(0, 9))
def test_class_by_class(cells: list[list[int]], seed: int) -> None:
    """Broken: a rare class is lost to training or to validation by accident, or a picture is on both sides."""
    cells[0][0] += 2  # so that there is something to hold out
    cells = [[*row, 3] for row in cells]  # and every client keeps something
    whole = federation(cells)
    made = hold_out(whole, 0.2, seed)
    all_of, left, held = whole.counts.sum(0), made.counts.sum(0), made.test_counts.sum(0)
    assert (left + held == all_of).all()
    assert (held == np.where(all_of > 1, np.maximum(np.round(0.2 * all_of), 1), 0)).all()
    assert (left[all_of > 0] > 0).all()
    assert (made.counts + made.test_counts == whole.counts).all(), "each client is tested on its own"
    assert made.held is not None
    labels = whole.dataset.train.labels
    assert labels is not None
    assert (made.dataset.test.labels == labels[made.held]).all()
    assert not set(made.held) & {i for share in made.shares for i in share.train}
    spare = (whole.counts > 1).astype(int) * (whole.counts - 1)
    lost = (whole.counts > 0) & (made.counts == 0)  # a client's last of a class goes only if nobody has one to spare
    assert not lost[:, spare.sum(0) >= held].any()


def test_from_the_seed() -> None:
    whole = federation([[9, 5], [7, 8]])
    held = [hold_out(whole, 0.3, seed).held for seed in (0, 0, 1)]
    assert all(it is not None for it in held)
    assert np.array_equal(held[0], held[1])
    assert not np.array_equal(held[0], held[2])


def test_what_cannot_be_held_out() -> None:
    with pytest.raises(UserError, match="leaves nothing on one side"):
        hold_out(federation([[1, 0], [0, 1]]), 0.2, 0)
    whole = federation([[2, 2]])
    unlabelled = replace(whole, dataset=replace(whole.dataset, train=replace(whole.dataset.train, labels=None)))
    with pytest.raises(UserError, match="no training labels to validate with"):
        hold_out(unlabelled, 0.2, 0)


@pytest.mark.parametrize("preprocess", ["clip", "paper"])
def test_a_run_never_sees_the_test_set(small: dict[str, Any], preprocess: str) -> None:
    """Broken: a validation run is tested on test pictures, or trains on what it is tested on."""
    settings = {**small, "data.validation": 0.25, "data.preprocess": preprocess}
    experiment = build(make_run("promptfl", settings))
    plain, groups = deal(make_run("promptfl", small))
    held, tests = experiment.federation.held, experiment.tests
    assert held is not None
    assert len(tests.labels) == len(held) == 12  # a quarter of 24, 16 and 8
    assert sum(map(len, experiment.client_data.values())) == 36
    assert [list(group) for _, group in experiment.groups.items()] == [list(group) for _, group in groups.items()]
    labels = plain.dataset.train.labels
    assert labels is not None
    assert (tests.labels == labels[held]).all()
    for k, share in enumerate(experiment.federation.shares):
        assert set(held[share.test]) | set(share.train) == set(plain.shares[k].train)
    features = build(make_run("promptfl", {**settings, "data.validation": 0.0})).client_data
    everyone = np.concatenate([share.train for share in plain.shares])
    assert sum(map(len, features.values())) == len(everyone)


def test_the_pictures_that_are_tested(small: dict[str, Any]) -> None:
    """Broken: the features in a test are those of other pictures than its labels'."""
    whole, part = (build(make_run("promptfl", {**small, "data.validation": v})) for v in (0.0, 0.25))
    held = part.federation.held
    assert held is not None
    client, share = whole.client_data[0], whole.federation.shares[0].train
    features = next(iter(client.views(10**6))).x
    for i, picture in enumerate(held):
        for j in np.flatnonzero(share == picture):
            assert np.array_equal(part.tests.features.fetch(np.array([i]))[0], features[j])


def test_numbers_of_a_validation_run(small: dict[str, Any]) -> None:
    one, two = (fedtailor.run("promptfl", {**small, "rounds": 1, "data.validation": v}) for v in (0.25, 0.0))
    assert one.summary["zero_shot"] != two.summary["zero_shot"]
    assert one.summary["balanced"]["global"] is not None


def test_nobody_takes_it_for_the_test_set(small: dict[str, Any], call: Call) -> None:
    words = [f"{key}={value}" for key, value in {**small, "rounds": 1, "data.validation": 0.25}.items()]
    assert "tested on validation pictures, 0.25 of the training set" in call("run", "promptfl", *words).out
    assert "Validation accuracy in %" in call("compare", "promptfl", *words).out


def test_sites_are_not_given_the_wrong_test_set(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"data\.validation puts training images in the place of the test set"):
        write_sites(hold_out(federation([[4, 4]]), 0.2, 0), tmp_path / "sites")
