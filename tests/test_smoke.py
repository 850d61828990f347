"""Methods, the tuners they allow, partitions, labels or none: a round of them runs and is tested.

Every pair of these meets in some case: every tuner each partition, every partition each method. All of them together:
`pytest -m slow`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from itertools import combinations as choose
from typing import Any

import numpy as np
import pytest

from fedtailor.data.dataset import Dataset, histogram
from fedtailor.data.federation import Federation, federate
from fedtailor.data.groups import GROUPS
from fedtailor.data.partitions import PARTITIONS
from fedtailor.methods import METHODS
from fedtailor.methods.recipe import RELEASED
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


Case = tuple[str, str, str, str]  # method, tuner, partition, labels
EVERYTHING: list[Case] = [
    (*both, where, labels) for both in combinations() for where in PARTITIONS for labels in LABELS
]


def pairs(case: Case) -> set[tuple[tuple[int, str], ...]]:
    return set(choose(enumerate(case), 2))


def all_pairs(cases: Iterable[Case]) -> list[Case]:
    """A few of the cases, with every pair of values that the cases have: first those with the most new pairs."""
    found: list[Case] = []
    seen: set[tuple[tuple[int, str], ...]] = set()
    for new in range(6, 0, -1):
        for case in cases:
            if len(pairs(case) - seen) >= new:
                found.append(case)
                seen |= pairs(case)
    return found


PAIRED = all_pairs(EVERYTHING)


def test_all_pairs_are_there() -> None:
    def met(cases: Iterable[Case]) -> set[tuple[tuple[int, str], ...]]:
        return set().union(*map(pairs, cases))

    assert met(PAIRED) == met(EVERYTHING)
    released = {name for name, entry in METHODS.items() if entry.family == RELEASED}  # test_laws.py has them
    assert {method for method, *_ in EVERYTHING} == METHODS.keys() - released
    assert len(PAIRED) < len(EVERYTHING) / 4


@pytest.mark.parametrize("case", PAIRED, ids="-".join)
def test_a_round(case: Case) -> None:
    a_round(*case)


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_a_round_of_everything(method: str) -> None:
    for case in EVERYTHING:
        if case[0] == method:
            a_round(*case)


def a_round(method: str, tuner: str, partition: str, labels: str) -> None:
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
