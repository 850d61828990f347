"""Tests of the server's and the clients' models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor

from fedtailor.base.rng import generator
from fedtailor.client.features import CachedFeatures
from fedtailor.client.job import ClientState, Job
from fedtailor.core.method import Method
from fedtailor.core.types import FIXED, GLOBAL, LOCAL, Cluster, Params, Scope, Server
from fedtailor.data.dataset import Indices
from fedtailor.data.groups import Groups
from fedtailor.evaluation import testing
from fedtailor.evaluation.testing import personal_theta, score_client, score_clients, score_shared, score_zero_shot
from fedtailor.simulation.build import Experiment
from world import dataset, world


@pytest.fixture(scope="module")
def experiment() -> Experiment:
    return world("fedavg", "text_prompt+visual_prompt")


def some_theta(experiment: Experiment, seed: int) -> Params:
    rng = generator(seed)
    return {n: torch.randn(v.shape, generator=rng) for n, v in experiment.job.start.items()}


def test_chunks_change_no_prediction(experiment: Experiment, monkeypatch: pytest.MonkeyPatch) -> None:
    """One picture at a time, seven, or all at once."""
    theta, found = some_theta(experiment, 1), list[Indices]()
    one = 4 * experiment.tests.features.fetch(np.arange(1)).numel()
    for room in (1, 7 * one, 1 << 30):
        monkeypatch.setattr(testing, "CHUNK_BYTES", room)
        with torch.no_grad():
            found.append(
                experiment.tests.predict(lambda x: experiment.job.model.logits(theta, x), experiment.tests.everything)
            )
    assert len(np.unique(found[0])) > 1
    assert all((other == found[0]).all() for other in found[1:])


def test_chunks_are_as_large_as_they_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pictures of 3 floats, 24 bytes of room: two at a time, in the order asked for."""
    monkeypatch.setattr(testing, "CHUNK_BYTES", 24)
    pool = CachedFeatures(np.eye(5, 3, dtype=np.float32))
    tests = testing.EvalSet(pool, np.zeros(5, dtype=np.int64), (), Groups(np.array([0]), np.array([1]), np.array([2])))
    sizes: list[int] = []

    def logits(x: Tensor) -> Tensor:
        sizes.append(len(x))
        return x

    assert tests.predict(logits, np.array([2, 0, 1])).tolist() == [2, 0, 1]
    assert sizes == [2, 1]
    assert tests.predict(logits, np.array([], dtype=np.int64)).tolist() == []


def count_texts(monkeypatch: pytest.MonkeyPatch, experiment: Experiment) -> list[int]:
    tower, calls = type(experiment.job.model.clip.text), list[int]()
    forward = tower.forward

    def counting(self: Any, *inputs: Any, **more: Any) -> Any:
        calls.append(1)
        return forward(self, *inputs, **more)

    monkeypatch.setattr(tower, "forward", counting)
    return calls


def test_text_is_encoded_once_an_evaluation(experiment: Experiment, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many chunks: once for the server, once for each client with parameters of its own, once for all others
    together, and for nobody with the next parameters' text."""
    monkeypatch.setattr(testing, "CHUNK_BYTES", 1)
    calls = count_texts(monkeypatch, experiment)
    server = replace(experiment.job.first_server(), params=some_theta(experiment, 1))
    first = score_shared(experiment.job, server, experiment.tests)
    assert len(calls) == 1
    clients = {k: ClientState(tuned=some_theta(experiment, 3 + k)) for k in (0, 2)}
    score_clients(experiment.job, server, clients, experiment.tests)
    assert len(calls) == 2 + len(clients)
    other = score_shared(experiment.job, replace(server, params=some_theta(experiment, 2)), experiment.tests)
    assert len(calls) == 3 + len(clients)
    assert other.per_class != first.per_class
    assert score_shared(experiment.job, server, experiment.tests) == first


def test_clients_without_a_state_are_tested_together(experiment: Experiment) -> None:
    """Every client's score is what it would be alone: own parameters, a cluster's, or the server's; in any pieces."""
    server = replace(experiment.job.first_server(), params=some_theta(experiment, 1))
    clients = {1: ClientState(tuned=some_theta(experiment, 2))}
    expected = [
        score_client(experiment.job, server, k, clients.get(k, ClientState()), experiment.tests) for k in range(4)
    ]
    assert list(score_clients(experiment.job, server, clients, experiment.tests)) == expected
    assert len({found.per_class for found in expected}) > 2

    def backwards(asked: Sequence[testing.Ask]) -> list[Indices]:
        return [ask() for ask in reversed(asked)][::-1]

    assert list(score_clients(experiment.job, server, clients, experiment.tests, backwards)) == expected


def test_a_cluster_without_a_state_has_its_own_model() -> None:
    """A client that is in a cluster is sent the cluster's copy, whether or not it has a state."""
    experiment = world("capt", "coupled+class_prompt")
    start, rng = experiment.job.first_server(), generator(5)
    copy = {"class.ctx": torch.randn(start.params["class.ctx"].shape, generator=rng)}
    members = {k: k for k in range(3)}
    server = replace(start, clusters={"similar": dict.fromkeys(members, copy)}, cluster_of={"similar": members})
    found = score_clients(experiment.job, server, {}, experiment.tests)
    assert list(found) == [score_client(experiment.job, server, k, ClientState(), experiment.tests) for k in range(4)]
    assert list(found)[:3] != list(score_clients(experiment.job, start, {}, experiment.tests))[:3]


def test_training_remembers_no_text(experiment: Experiment, monkeypatch: pytest.MonkeyPatch) -> None:
    """Outside an evaluation parameters change in place, so every call encodes anew."""
    calls = count_texts(monkeypatch, experiment)
    theta = some_theta(experiment, 1)
    with torch.no_grad():
        before = experiment.job.model.text(theta)
        theta["text.ctx"].mul_(2)
        after = experiment.job.model.text(theta)
    assert len(calls) == 2
    assert not torch.allclose(before, after)


def test_zero_shot_is_the_template(experiment: Experiment) -> None:
    """The whole set, and the mean of the same predictions on the clients' parts; no parameter plays a part."""
    whole, parts = score_zero_shot(experiment.job, experiment.tests)
    labels = dataset().test.labels
    predicted = experiment.tests.predict(experiment.job.model.zero_shot_logits, experiment.tests.everything)
    assert whole.overall == pytest.approx(100 * np.mean(predicted == labels))
    each = [100 * np.mean(predicted[p] == labels[p]) for p in experiment.tests.parts]
    assert parts.overall == pytest.approx(np.mean(each))
    assert parts.worst == pytest.approx(min(each))


class Shares(Method):
    def init(self, model: Any, rng: torch.Generator) -> Params:
        return {name: torch.zeros(1) for name in ("g", "c", "x", "f")}


class Personal(Shares):
    share: ClassVar[Mapping[str, Scope]] = {"g": GLOBAL, "c": Cluster("near"), "x": LOCAL, "f": FIXED}


class Common(Shares):
    share: ClassVar[Mapping[str, Scope]] = {"g": GLOBAL, "c": Cluster("near"), "x": GLOBAL, "f": FIXED}


def number(value: float) -> Tensor:
    return torch.tensor([value])


def theta(method: Method, who: int, client: ClientState) -> dict[str, float]:
    job = Job(method, None, 0)  # type: ignore[arg-type]
    params = {n: number(10 + i) for i, n in enumerate(job.first_server().params)}
    server = Server(3, params, {"near": {0: {"c": number(77)}}}, {"near": {1: 0}})
    return {n: v.item() for n, v in personal_theta(job, server, who, client).items()}


def test_a_model_with_parameters_of_its_own() -> None:
    """Its LOCAL parameters, the server's shared ones now, its cluster's copy; never what it trained before."""
    client = ClientState(local={"x": number(5)})
    assert theta(Personal(), 0, client) == {"g": 10, "c": 11, "x": 5, "f": 0}
    assert theta(Personal(), 1, client) == {"g": 10, "c": 77, "x": 5, "f": 0}
    assert theta(Personal(), 1, ClientState()) == {"g": 10, "c": 77, "x": 0, "f": 0}  # no step yet: the first value


def test_a_model_without_parameters_of_its_own() -> None:
    """What the client last trained, before it was averaged; the server's for what it has not trained."""
    assert theta(Common(), 1, ClientState(tuned={"g": number(1), "c": number(2)})) == {"g": 1, "c": 2, "x": 12, "f": 0}
    assert theta(Common(), 1, ClientState()) == {"g": 10, "c": 77, "x": 12, "f": 0}


def test_a_client_is_tested_on_its_own_part(experiment: Experiment) -> None:
    """A trained client's score is that of its own parameters on its own pictures."""
    mine, server = some_theta(experiment, 4), experiment.job.first_server()
    found = score_client(experiment.job, server, 2, ClientState(tuned=mine), experiment.tests)
    part, labels = experiment.tests.parts[2], dataset().test.labels
    with torch.no_grad():
        predicted = experiment.job.model.logits(mine, experiment.tests.features.fetch(part)).argmax(1).numpy()
    assert found.overall == pytest.approx(100 * np.mean(predicted == labels[part]))
    assert found.per_class != score_client(experiment.job, server, 2, ClientState(), experiment.tests).per_class
