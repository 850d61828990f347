"""Labels of one's own beside those that a labeler makes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from fedtailor.client.data import ClientData
from fedtailor.client.features import CachedFeatures
from fedtailor.evaluation.pseudo_labels import pseudo_label_quality
from fedtailor.labelers import LABELERS
from fedtailor.runs.server_bytes import server_to_bytes
from fedtailor.simulation.build import Experiment, assemble
from fedtailor.simulation.engine import make_engine
from fedtailor.simulation.loop import run_round
from remote import RemoteWorld, here
from world import checkpoint, world

LABELS = np.array([2, -1, 0, -1, -1, 1], dtype=np.int64)
VALUES = np.arange(6, dtype=np.float32)[:, None]


def client(labels: np.ndarray | None = LABELS) -> ClientData:
    return ClientData(CachedFeatures(VALUES), np.array([0, 1, 3, 4, 5]), labels, 3)


def pictures(data: ClientData) -> list[float]:
    return [x for view in data.views() for x in view.x.flatten().tolist()]


def test_a_labeler_sees_the_others_without_labels() -> None:
    others = client().unlabelled()
    assert pictures(others) == [1, 3, 4]
    with pytest.raises(Exception, match="have no labels"):
        _ = others.labels
    assert pictures(client(None).unlabelled()) == [0, 1, 3, 4, 5]


def test_a_method_sees_both() -> None:
    """Those with a label of their own first; a labeler's places count among the others."""
    data = client().completed(torch.tensor([2, 0, 0]), torch.tensor([1, 0, 2]))
    assert pictures(data) == [0, 5, 4, 1, 1]
    assert data.labels.tolist() == [2, 1, 1, 0, 2]
    assert data.counts().tolist() == [1, 2, 2]
    held, rest = data.split(0.5)
    assert sorted(pictures(held) + pictures(rest)) == [0, 1, 1, 4, 5]


def test_an_own_label_is_the_only_candidate() -> None:
    data = client().completed(torch.tensor([1]), torch.tensor([0]), torch.tensor([[0.5, 0.5, 0.0]]))
    batch = data.some(torch.arange(3), torch.Generator())
    assert batch.candidates is not None
    assert batch.candidates.tolist() == [[0, 0, 1], [0, 1, 0], [0.5, 0.5, 0]]


def test_without_own_labels_all_is_as_it_was() -> None:
    index, y = torch.tensor([4, 1]), torch.tensor([0, 2])
    for labels in (None, np.full(6, -1)):
        data = client(labels).completed(index, y)
        assert pictures(data) == [5, 1]
        assert data.labels.tolist() == [0, 2]


def small(labels: str, part: float | None = 0.3, method: str = "promptfl") -> Experiment:
    return world(method, "text_prompt", rounds=2, fraction=1.0, labels=labels, **{"data.labelled": part})


def played(experiment: Experiment) -> tuple[bytes, dict[int, Tensor]]:
    engine, server = make_engine(experiment), experiment.job.first_server()
    while server.round < experiment.rounds:
        server, _ = run_round(experiment, server, engine)
    return server_to_bytes(server), {k: engine.clients[k].memory["labels.index"] for k in engine.clients}


def falsified(experiment: Experiment, known: bool) -> Experiment:
    """The same pictures in the same hands; of those that are known, or of the others, all labels are wrong."""
    federation = experiment.federation
    assert federation.known is not None
    dataset, which = federation.dataset, federation.known == known
    labels = np.asarray(dataset.train.labels)
    wrong = np.where(which, (labels + 1) % len(dataset.classes), labels)
    other = replace(dataset, train=replace(dataset.train, labels=wrong))
    return assemble(experiment.run, replace(federation, dataset=other), experiment.groups, checkpoint())


@pytest.mark.parametrize("labels", LABELERS)
def test_known_labels_count_and_others_do_not(labels: str) -> None:
    """The proof: with all other labels wrong not a bit is different; with the known ones wrong it is."""
    experiment = small(labels)
    end = played(experiment)[0]
    assert played(falsified(experiment, known=False))[0] == end
    assert played(falsified(experiment, known=True))[0] != end


def test_quality_is_of_those_that_were_labelled() -> None:
    experiment = small("zeroshot")
    engine, server = make_engine(experiment), experiment.job.first_server()
    run_round(experiment, server, engine)
    federation = experiment.federation
    told = pseudo_label_quality(federation, engine.clients)
    assert told is not None
    asked = sum(len(federation.to_label(k)) for k in range(federation.clients))
    assert (told["samples"], told["coverage"]) == (asked, 100.0)
    assert asked < federation.sizes.sum()


def test_remote_clients_reach_the_same_bits(tmp_path: Path) -> None:
    experiment = small("copl")
    assert RemoteWorld(experiment, tmp_path).end() == here(experiment)


def test_given_labels_are_those_that_are_known() -> None:
    part = small("given")
    assert part.federation.sizes.sum() < small("given", None).federation.sizes.sum()
    assert all(len(data) == len(data.labels) for data in part.client_data.values())
