"""What others are measured against: everyone alone, all data in one place, a linear probe; and FedSA-LoRA."""

from __future__ import annotations

import torch

from fedtailor.core import GLOBAL, LOCAL, OWN
from fedtailor.descend import descend
from fedtailor.engines.local import LocalEngine
from fedtailor.evaluate import score_clients, score_shared
from fedtailor.labelers.base import INDEX
from fedtailor.rng import generator
from fedtailor.train import advance, train
from world import CLIENTS, world


def test_alone_sends_nothing() -> None:
    setup = world("local", fraction=1.0)
    records = list(train(setup))
    assert all(record.bytes_up == record.bytes_down == 0 for record in records)
    assert records[-1].shared is not None
    assert records[-1].shared.overall is None  # there is no global model
    assert records[-1].personal is not None
    assert records[-1].personal.overall is not None


def test_alone_is_each_clients_own_descent() -> None:
    setup = world("local", rounds=1, fraction=1.0)
    engine = setup.engine()
    advance(setup, setup.job.first_server(), engine)
    for k in range(CLIENTS):
        rng = generator(setup.job.seed, "round", 0, "client", k, "train")
        gradient = setup.job.method.gradient(setup.job.model, setup.job.start)
        end = descend(gradient, setup.job.start, setup.shelves[k], setup.job.method.local, 0, rng)
        assert torch.equal(end["text.ctx"], engine.clients[k].local["text.ctx"])


def test_central_trains_on_every_picture_once_an_epoch() -> None:
    setup = world("central", rounds=1)
    (shelf,) = setup.shelves.values()
    assert list(setup.shelves) == [OWN]
    assert len(shelf) == sum(len(share.train) for share in setup.federation.shares)
    truths = setup.federation.dataset.train.labels
    assert truths is not None
    assert torch.equal(shelf.counts(), torch.bincount(torch.from_numpy(truths)))


def test_central_gives_everyone_the_same_model() -> None:
    setup = world("central", rounds=1)
    engine = setup.engine()
    server, cohort = advance(setup, setup.job.first_server(), engine)
    assert cohort == [OWN]
    scores = score_clients(setup.job, server, engine.clients, setup.tests)
    own = [score_clients(setup.job, server, {}, setup.tests)[k] for k in range(CLIENTS)]
    assert [s.overall for s in scores] == [s.overall for s in own]
    assert score_shared(setup.job, server, setup.tests).overall is not None


def test_central_without_labels_labels_all_of_it() -> None:
    setup = world("central", rounds=1, labels="zeroshot")
    engine = LocalEngine(setup.job, setup.shelves)
    advance(setup, setup.job.first_server(), engine)
    assert len(engine.clients[OWN].memory[INDEX]) == len(setup.shelves[OWN])
    pseudo = next(iter(train(world("central", rounds=1, labels="zeroshot")))).pseudo
    assert pseudo is not None
    assert pseudo["samples"] == pseudo["labelled"] == len(setup.shelves[OWN])
    zeroshot = next(iter(train(world("fedavg", rounds=1, labels="zeroshot")))).pseudo
    assert zeroshot is not None
    assert pseudo["accuracy"] == zeroshot["accuracy"]  # the same labels, found in one place


def test_a_head_of_text_features_is_zero_shot() -> None:
    setup = world("linear-probe", "head", **{"tuner.start": "text"})
    model, x = setup.job.model, setup.tests.pool.fetch(setup.tests.everything)
    torch.testing.assert_close(model.logits(setup.job.start, x), model.zero_shot_logits(x))
    biased = {**setup.job.start, "head.bias": torch.arange(5.0)}
    torch.testing.assert_close(model.logits(biased, x), model.zero_shot_logits(x) + torch.arange(5.0))
    blank = world("linear-probe", "head").job
    assert torch.equal(blank.model.logits(blank.start, x), torch.zeros(len(x), 5))


def test_fedsa_shares_one_half_of_each_delta() -> None:
    setup = world("fedsa-lora", "lora")
    scopes = setup.job.scopes
    assert {name[-1]: scope for name, scope in scopes.items()} == {"A": GLOBAL, "B": LOCAL}
    zero_shot = setup.job.model.zero_shot_logits(x := setup.tests.pool.fetch(setup.tests.everything))
    engine = setup.engine()
    server = setup.job.first_server()
    while server.round < setup.rounds:
        server, _ = advance(setup, server, engine)
    theta = {**setup.job.start, **server.params}
    assert not torch.equal(theta["visual.block0.q.A"], setup.job.start["visual.block0.q.A"])
    torch.testing.assert_close(setup.job.model.logits(theta, x), zero_shot, atol=1e-4, rtol=0)  # with B at zero
    own = {**theta, **engine.clients[0].local}
    assert not torch.allclose(setup.job.model.logits(own, x), zero_shot, atol=1e-3)
