"""Any method trains on any labeler, and none of them can reach a true label."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from fedtailor.core import Me, Params, Reply
from fedtailor.engines.local import LocalEngine
from fedtailor.errors import UserError
from fedtailor.labelers import LABELERS
from fedtailor.setup import Setup
from fedtailor.store import server_to_bytes
from fedtailor.train import advance
from fedtailor.wire import client_to_bytes
from world import settings, world

METHODS = {
    "promptfl": "text_prompt",
    "capt": "coupled+class_prompt",
    "fedcopl": "text_prompt+visual_prompt",
    "fedpurel": "text_prompt",
}
pairs = pytest.mark.parametrize(("method", "labels"), [(m, n) for m in METHODS for n in LABELERS])


def run(setup: Setup) -> list[bytes]:
    """Everything that server and clients know at the end."""
    engine, server = setup.engine(), setup.job.first_server()
    while server.round < setup.rounds:
        server, _ = advance(setup, server, engine)
    assert not all(torch.equal(server.params[n], setup.job.start[n]) for n in server.params)
    return [server_to_bytes(server), *(client_to_bytes(engine.clients[k]) for k in sorted(engine.clients))]


def small(method: str, labels: str) -> Setup:
    # Refreshed in round 2 by clients' own models, where a labeler does that.
    return world(method, METHODS[method], rounds=3, fraction=1.0, labels=labels, **{"labels.refresh": 2})


def with_other_truths(setup: Setup) -> Setup:
    """The same pictures in the same hands, under labels that are all wrong."""
    dataset = setup.federation.dataset
    assert dataset.train.labels is not None
    wrong = (dataset.train.labels + 1 + np.arange(len(dataset.train)) % 3) % len(dataset.classes)
    train = replace(dataset.train, labels=wrong.astype(np.int64))
    return replace(setup, federation=replace(setup.federation, dataset=replace(dataset, train=train)))


@pairs
def test_true_labels_change_nothing(method: str, labels: str) -> None:
    """The proof: swap every true label for a wrong one, and not a bit of what is learned or kept is different."""
    assert run(small(method, labels)) == run(with_other_truths(small(method, labels)))


def test_with_labels_given_they_do() -> None:
    """The test above can fail."""
    setup = world("promptfl", "text_prompt", rounds=1)
    assert run(setup) != run(with_other_truths(world("promptfl", "text_prompt", rounds=1)))


@pytest.mark.parametrize("labels", LABELERS)
def test_a_pass_sees_pseudo_labels_and_no_others(labels: str) -> None:
    setup = small("promptfl", labels)
    seen: dict[int, Any] = {}

    class Curious(type(setup.job.method)):  # type: ignore[misc]
        def train(self, model: Any, me: Me, theta: Params) -> Reply:
            seen[me.id] = (me.data.labels, me.data.counts(), len(me.data))
            return super().train(model, me, theta)

    job = replace(setup.job, method=Curious(**dict(setup.job.method)))
    engine = LocalEngine(job, setup.shelves)
    advance(replace(setup, job=job), job.first_server(), engine)
    assert seen
    for k, (y, counts, size) in seen.items():
        assert torch.equal(y, engine.clients[k].memory["labels.y"])
        assert counts.sum() == size == len(y)


def test_before_they_are_labelled_clients_have_nothing_to_train_on() -> None:
    setup = small("promptfl", "copl")
    with pytest.raises(UserError, match="anything to train on"):
        setup.job.method.round(setup.job.first_server(), [0], setup.engine())
    with pytest.raises(UserError, match="no labels"):
        _ = setup.shelves[0].labels


def test_capt_counts_again_when_labels_are_new() -> None:
    """The prior follows the pseudo-labels: a census at each labeling, of them and not of the truth."""
    setup = small("capt", "copl")
    engine, server = setup.engine(), setup.job.first_server()
    for t in range(3):
        server, _ = advance(setup, server, engine)
        asked = [v.client for v in engine.visits if v.round == t and v.pass_ == "census"]
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
    from fedtailor.setup import assemble
    from world import checkpoint

    setup = world("promptfl", "text_prompt")
    bare = replace(setup.federation.dataset, train=replace(setup.federation.dataset.train, labels=None))
    federation = replace(setup.federation, dataset=bare)
    with pytest.raises(UserError, match="labels=copl"):
        assemble(setup.run, federation, setup.groups, checkpoint())
    run_ = settings("promptfl", "text_prompt", labels="zeroshot")
    unlabelled = assemble(run_, federation, setup.groups, checkpoint())
    server, _ = advance(unlabelled, unlabelled.job.first_server(), unlabelled.engine())
    assert not torch.equal(server.params["text.ctx"], setup.job.start["text.ctx"])
