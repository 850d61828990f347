"""Every method with every tuner it allows, on every partition, with labels and without: a round runs and is tested."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from fedtailor.data.dataset import Dataset, histogram
from fedtailor.data.federation import Federation, federate
from fedtailor.data.groups import GROUPS
from fedtailor.data.partitions import PARTITIONS
from fedtailor.runs.execute import train
from fedtailor.settings.run import GIVEN
from fedtailor.simulation.build import assemble
from world import NAMES, checkpoint, combinations, dataset, settings

CLIENTS = 3
OPTIONS: dict[str, dict[str, Any]] = {"dirichlet": {"alpha": 0.5, "min_size": 2}, "quantity": {"share": 1.0}}
LABELS = {"labelled": GIVEN, "unlabelled": "copl"}


@cache
def places() -> Dataset:
    """The toy with super-classes, and with places that its pictures come from."""
    toy = dataset(6)
    sites = [np.arange(len(split)) % CLIENTS for split in (toy.train, toy.test)]
    train, test = (replace(s, sites=p.astype(np.int64)) for s, p in zip((toy.train, toy.test), sites, strict=True))
    return replace(toy, train=train, test=test, coarse=np.array([0, 1, 1, 0, 1]))


@cache
def dealt(partition: str) -> Federation:
    return federate(places(), PARTITIONS[partition](**OPTIONS.get(partition, {})), CLIENTS, 0)


@pytest.mark.parametrize("labels", LABELS)
@pytest.mark.parametrize("partition", PARTITIONS)
@pytest.mark.parametrize(("method", "tuner"), combinations())
def test_a_round_of_everything(method: str, tuner: str, partition: str, labels: str) -> None:
    run = settings(method, tuner, clients=CLIENTS, fraction=1.0, rounds=1, labels=LABELS[labels])
    truths = places().train.labels
    assert truths is not None
    experiment = assemble(run, dealt(partition), GROUPS["capt"](histogram(truths, len(NAMES))), checkpoint())
    if not experiment.job.method.trains:
        assert not list(train(experiment))
        return
    records = list(train(experiment))
    last = records[-1]
    assert last.personal is not None
    assert last.personal.overall is not None
    assert (last.pseudo is None) == (labels == "labelled")
    assert last.shared is not None
    assert (last.shared.overall is None) == (method == "local")  # which has no global model
    if labels == "labelled":  # a labeler may ask for more
        assert (sum(record.bytes_up for record in records) == 0) == (method == "local")
