"""Zero-shot labels, and the probabilities that all labelers start from."""

from __future__ import annotations

import torch
from crowd import Crowd, labels, own_model

from fedtailor.labelers.zeroshot import ZeroShotLabels
from fedtailor.simulation.engine import make_engine
from world import world

LOGITS = torch.randn(9, 4, generator=torch.Generator().manual_seed(1))


def test_every_picture_is_what_clip_takes_it_for() -> None:
    (kept,) = Crowd([LOGITS]).label(ZeroShotLabels()).values()
    assert kept["labels.index"].tolist() == list(range(9))
    assert kept["labels.y"].tolist() == LOGITS.argmax(1).tolist()


def test_later_labels_are_the_own_models() -> None:
    (kept,) = Crowd([LOGITS]).label(ZeroShotLabels(refresh=3), t=3).values()
    assert kept["labels.y"].tolist() == own_model(LOGITS).argmax(1).tolist() != LOGITS.argmax(1).tolist()


def test_when_it_labels() -> None:
    assert [t for t in range(7) if ZeroShotLabels().due(t)] == [0]
    assert [t for t in range(7) if ZeroShotLabels(refresh=3).due(t)] == [0, 3, 6]


def test_clients_with_no_or_one_picture() -> None:
    crowd = Crowd([LOGITS[:0], LOGITS[:1]])
    kept = crowd.label(ZeroShotLabels())
    assert labels(kept[0]) == set()
    assert labels(kept[1]) == {(0, int(LOGITS[0].argmax()))}
    assert crowd.sent == [{0: {}, 1: {}}]


def test_a_federation() -> None:
    experiment = world("fedavg", labels="zeroshot")
    engine = make_engine(experiment)
    labeler = experiment.job.labeler
    assert labeler is not None
    labeler.label(experiment.job.first_server(), range(4), engine)
    for k, data in experiment.client_data.items():
        (view,) = data.views()
        assert torch.equal(
            engine.clients[k].memory["labels.y"], experiment.job.model.zero_shot_logits(view.x).argmax(1)
        )
