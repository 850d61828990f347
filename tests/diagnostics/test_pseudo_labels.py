"""How good pseudo-labels are."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from seen_rounds import seen_round

from fedtailor.client.job import ClientState
from fedtailor.evaluation.diagnostics.predictions import labels
from fedtailor.evaluation.pseudo_labels import pseudo_label_quality, quality
from fedtailor.labelers.base import INDEX, LABEL
from fedtailor.runs.execute import train
from fedtailor.runs.result import summarise
from fedtailor.simulation.engine import make_engine
from world import CLIENTS, NAMES, dataset, world


def test_quality_by_hand() -> None:
    """Five pictures of classes 0 0 1 1 2; the first has a right and a wrong label, the third a right one.

    All: 2 of 3 labels right, 2 of 5 pictures covered. Class 0: 1 of 2 and 1 of 2. Class 2: nothing of 1.
    """
    truth, picture, y = np.array([0, 0, 1, 1, 2]), np.array([0, 0, 2]), np.array([0, 1, 1])
    assert quality(truth, picture, y) == {
        "accuracy": pytest.approx(200 / 3),
        "coverage": 40,
        "labelled": 2,
        "samples": 5,
    }
    assert quality(truth, picture, y, truth == 0) == {"accuracy": 50, "coverage": 50, "labelled": 1, "samples": 2}
    assert quality(truth, picture, y, truth == 2) == {"accuracy": None, "coverage": 0, "labelled": 0, "samples": 1}
    assert quality(truth, picture, y, truth == 3) == {"accuracy": None, "coverage": None, "labelled": 0, "samples": 0}


def test_labels_count_in_a_clients_own_pictures() -> None:
    """Index 1 is client 2's second picture, wherever that stands in the dataset."""
    experiment = world("fedavg", "text_prompt", labels="zeroshot")
    truths, shares = dataset().train.labels, experiment.federation.shares
    assert truths is not None
    second = int(truths[shares[2].train[1]])
    clients = {k: ClientState() for k in range(CLIENTS)}
    for said, accuracy in ((second, 100), ((second + 1) % len(NAMES), 0)):
        clients[2] = ClientState(memory={INDEX: torch.tensor([1]), LABEL: torch.tensor([said])})
        found = pseudo_label_quality(experiment.federation, clients)
        assert found == {
            "accuracy": accuracy,
            "coverage": pytest.approx(100 / len(truths)),
            "labelled": 1,
            "samples": 45,
        }


def test_zero_shot_labels() -> None:
    """Every picture has one; they are as good as zero-shot CLIP is on the training set, in every part of it."""
    experiment = world("fedavg", "text_prompt", labels="zeroshot")
    seen, truths = seen_round(experiment), dataset().train.labels
    assert truths is not None
    said = (
        experiment.job.model.zero_shot_logits(experiment.client_data[0]._pool.fetch(np.arange(len(truths))))
        .argmax(1)
        .numpy()
    )
    found = labels(seen)
    assert found is not None
    assert found["overall"] == pseudo_label_quality(experiment.federation, seen.clients)
    assert found["overall"] == {
        "accuracy": pytest.approx(100 * np.mean(said == truths)), "coverage": 100, "labelled": 45, "samples": 45,
    }  # fmt: skip
    for name, classes in experiment.groups.items():
        of = np.isin(truths, classes)
        assert found[name]["accuracy"] == pytest.approx(100 * np.mean((said == truths)[of]))
    for share, client in zip(experiment.federation.shares, found["clients"].values(), strict=True):
        assert client["accuracy"] == pytest.approx(100 * np.mean((said == truths)[share.train]))
        assert client["samples"] == len(share.train)
    assert list(found["clients"]) == [str(k) for k in range(CLIENTS)]
    assert len({client["accuracy"] for client in found["clients"].values()}) > 1


def test_truths_that_nobody_has() -> None:
    """Given labels are not pseudo-labels, and data without any has nothing to compare with."""
    given = world("fedavg", "text_prompt")
    assert make_engine(given).pseudo_labels(given) is None
    seen = seen_round(world("fedavg", "text_prompt", labels="zeroshot"))
    blind = replace(dataset(), train=replace(dataset().train, labels=None))
    federation = replace(seen.federation, dataset=blind)
    assert pseudo_label_quality(federation, seen.clients) is None
    assert labels(replace(seen, federation=federation)) is None


def test_every_record_and_the_summary() -> None:
    """Always there where labels are not given, asked for or not."""
    experiment = world("fedavg", "text_prompt", labels="fpl", **{"labels.k": 1})
    rows = [record.row() for record in train(experiment)]
    assert all(row["diagnostics"] == {} for row in rows)
    assert rows[-1]["pseudo"]["labelled"] == len(NAMES) * CLIENTS  # each client's boards are full
    assert rows[-1]["pseudo"]["coverage"] == pytest.approx(100 * rows[-1]["pseudo"]["labelled"] / 45)
    score = next(iter(train(experiment))).shared
    assert score is not None
    summary = summarise(experiment, (score, score), rows, None, 1.0, 1.0)
    assert summary["pseudo_labels"] == rows[-1]["pseudo"]
    given = [record.row() for record in train(world("fedavg", "text_prompt"))]
    assert all(row["pseudo"] is None for row in given)
    assert summarise(experiment, (score, score), [], None, 1.0, 1.0)["pseudo_labels"] is None
