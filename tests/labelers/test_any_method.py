"""Any method trains on any labeler, and none of them can reach a true label."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from fedtailor.base.errors import UserError
from fedtailor.client.codec import client_to_bytes
from fedtailor.core.types import Me, Params, Reply
from fedtailor.labelers import LABELERS
from fedtailor.runs.server_bytes import server_to_bytes
from fedtailor.simulation.build import Experiment, assemble
from fedtailor.simulation.engine import make_engine
from fedtailor.simulation.local import LocalEngine
from fedtailor.simulation.loop import run_round
from world import checkpoint, settings, world

METHODS = {
    "promptfl": "text_prompt",
    "capt": "coupled+class_prompt",
    "fedcopl": "text_prompt+visual_prompt",
    "fedpurel": "text_prompt",
}
pairs = pytest.mark.parametrize(("method", "labels"), [(m, n) for m in METHODS for n in LABELERS])


def run(experiment: Experiment) -> list[bytes]:
    """Everything that server and clients know at the end."""
    engine, server = make_engine(experiment), experiment.job.first_server()
    while server.round < experiment.rounds:
        server, _ = run_round(experiment, server, engine)
    assert not all(torch.equal(server.params[n], experiment.job.start[n]) for n in server.params)
    return [server_to_bytes(server), *(client_to_bytes(engine.clients[k]) for k in sorted(engine.clients))]


def small(method: str, labels: str) -> Experiment:
    # Refreshed in round 2 by clients' own models, where a labeler does that.
    return world(method, METHODS[method], rounds=3, fraction=1.0, labels=labels, **{"labels.refresh": 2})


def with_other_truths(experiment: Experiment) -> Experiment:
    """The same pictures in the same hands, under labels that are all wrong."""
    dataset = experiment.federation.dataset
    assert dataset.train.labels is not None
    wrong = (dataset.train.labels + 1 + np.arange(len(dataset.train)) % 3) % len(dataset.classes)
    train = replace(dataset.train, labels=wrong.astype(np.int64))
    federation = replace(experiment.federation, dataset=replace(dataset, train=train))
    return assemble(experiment.run, federation, experiment.tests.groups, checkpoint())


@pairs
def test_true_labels_change_nothing(method: str, labels: str) -> None:
    """The proof: swap every true label for a wrong one, and not a bit of what is learned or kept is different."""
    assert run(small(method, labels)) == run(with_other_truths(small(method, labels)))


def test_with_labels_given_they_do() -> None:
    """The test above can fail."""
    experiment = world("promptfl", "text_prompt", rounds=1)
    assert run(experiment) != run(with_other_truths(world("promptfl", "text_prompt", rounds=1)))


@pytest.mark.parametrize("labels", LABELERS)
def test_a_pass_sees_pseudo_labels_and_no_others(labels: str) -> None:
    experiment = small("promptfl", labels)
    seen: dict[int, Any] = {}

    class Curious(type(experiment.job.method)):  # type: ignore[misc]
        def train(self, model: Any, me: Me, theta: Params) -> Reply:
            seen[me.id] = (me.data.labels, me.data.counts(), len(me.data))
            return super().train(model, me, theta)

    job = replace(experiment.job, method=Curious(**dict(experiment.job.method)))
    engine = LocalEngine(job, experiment.client_data)
    run_round(replace(experiment, job=job), job.first_server(), engine)
    assert seen
    for k, (y, counts, size) in seen.items():
        assert torch.equal(y, engine.clients[k].memory["labels.y"])
        assert counts.sum() == size == len(y)


def test_before_they_are_labelled_clients_have_nothing_to_train_on() -> None:
    experiment = small("promptfl", "copl")
    with pytest.raises(UserError, match="anything to train on"):
        experiment.job.method.round(experiment.job.first_server(), [0], make_engine(experiment))
    with pytest.raises(UserError, match="no labels"):
        _ = experiment.client_data[0].labels


def test_capt_counts_again_when_labels_are_new() -> None:
    """The prior follows the pseudo-labels: a census at each labeling, of them and not of the truth."""
    experiment = small("capt", "copl")
    engine, server = make_engine(experiment), experiment.job.first_server()
    for t in range(3):
        server, _ = run_round(experiment, server, engine)
        asked = [v.client for v in engine.log if v.round == t and v.pass_name == "census"]
        assert asked == ([0, 1, 2, 3] if t in (0, 2) else [])
    own = torch.stack([torch.bincount(engine.clients[k].memory["labels.y"], minlength=5) for k in range(4)])
    assert torch.equal(server.state["counts"], own)


def test_a_labelers_options_are_checked() -> None:
    with pytest.raises(UserError, match=r"labels\.refresh"):
        settings("promptfl", "text_prompt", labels="copl", **{"labels.refresh": -1})
    with pytest.raises(UserError, match="did you mean 'copl'"):
        settings("promptfl", "text_prompt", labels="colp")
    with pytest.raises(UserError, match=r"unknown key 'labels\.k'"):
        settings("promptfl", "text_prompt", labels="copl", **{"labels.k": 4})


def test_a_dataset_without_labels_needs_a_labeler() -> None:
    from fedtailor.simulation.build import assemble
    from world import checkpoint

    experiment = world("promptfl", "text_prompt")
    bare = replace(experiment.federation.dataset, train=replace(experiment.federation.dataset.train, labels=None))
    federation = replace(experiment.federation, dataset=bare)
    with pytest.raises(UserError, match="labels=copl"):
        assemble(experiment.run, federation, experiment.groups, checkpoint())
    run_ = settings("promptfl", "text_prompt", labels="zeroshot")
    unlabelled = assemble(run_, federation, experiment.groups, checkpoint())
    server, _ = run_round(unlabelled, unlabelled.job.first_server(), make_engine(unlabelled))
    assert not torch.equal(server.params["text.ctx"], experiment.job.start["text.ctx"])
