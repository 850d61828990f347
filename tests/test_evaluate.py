"""Tests of the server's and the clients' models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor

from fedtailor import evaluate
from fedtailor.core import FIXED, GLOBAL, LOCAL, Cluster, Method, Params, Scope, Server
from fedtailor.data.groups import Groups
from fedtailor.data.samples import CachedPool
from fedtailor.data.sets import Indices
from fedtailor.evaluate import personal_theta, score_client, score_clients, score_shared, score_zero_shot
from fedtailor.rng import generator
from fedtailor.setup import Setup
from fedtailor.visit import Client, Job
from world import dataset, world


@pytest.fixture(scope="module")
def setup() -> Setup:
    return world("fedavg", "text_prompt+visual_prompt")


def some_theta(setup: Setup, seed: int) -> Params:
    rng = generator(seed)
    return {n: torch.randn(v.shape, generator=rng) for n, v in setup.job.start.items()}


def test_chunks_change_no_prediction(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    """One picture at a time, seven, or all at once."""
    theta, found = some_theta(setup, 1), list[Indices]()
    one = 4 * setup.tests.pool.fetch(np.arange(1)).numel()
    for room in (1, 7 * one, 1 << 30):
        monkeypatch.setattr(evaluate, "CHUNK_BYTES", room)
        with torch.no_grad():
            found.append(setup.tests.predict(lambda x: setup.job.model.logits(theta, x), setup.tests.everything))
    assert len(np.unique(found[0])) > 1
    assert all((other == found[0]).all() for other in found[1:])


def test_chunks_are_as_large_as_they_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pictures of 3 floats, 24 bytes of room: two at a time, in the order asked for."""
    monkeypatch.setattr(evaluate, "CHUNK_BYTES", 24)
    pool = CachedPool(np.eye(5, 3, dtype=np.float32))
    tests = evaluate.Tests(pool, np.zeros(5, dtype=np.int64), (), Groups(np.array([0]), np.array([1]), np.array([2])))
    sizes: list[int] = []

    def logits(x: Tensor) -> Tensor:
        sizes.append(len(x))
        return x

    assert tests.predict(logits, np.array([2, 0, 1])).tolist() == [2, 0, 1]
    assert sizes == [2, 1]
    assert tests.predict(logits, np.array([], dtype=np.int64)).tolist() == []


def count_texts(monkeypatch: pytest.MonkeyPatch, setup: Setup) -> list[int]:
    tower, calls = type(setup.job.model.clip.text), list[int]()
    forward = tower.forward

    def counting(self: Any, *inputs: Any, **more: Any) -> Any:
        calls.append(1)
        return forward(self, *inputs, **more)

    monkeypatch.setattr(tower, "forward", counting)
    return calls


def test_text_is_encoded_once_an_evaluation(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many chunks: once for the server, once for each client, and for nobody with the next parameters' text."""
    monkeypatch.setattr(evaluate, "CHUNK_BYTES", 1)
    calls = count_texts(monkeypatch, setup)
    server = replace(setup.job.first_server(), params=some_theta(setup, 1))
    first = score_shared(setup.job, server, setup.tests)
    assert len(calls) == 1
    clients = setup.engine().clients
    score_clients(setup.job, server, clients, setup.tests)
    assert len(calls) == 1 + len(clients)
    other = score_shared(setup.job, replace(server, params=some_theta(setup, 2)), setup.tests)
    assert len(calls) == 2 + len(clients)
    assert other.per_class != first.per_class
    assert score_shared(setup.job, server, setup.tests) == first


def test_training_remembers_no_text(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    """Outside an evaluation parameters change in place, so every call encodes anew."""
    calls = count_texts(monkeypatch, setup)
    theta = some_theta(setup, 1)
    with torch.no_grad():
        before = setup.job.model.text(theta)
        theta["text.ctx"].mul_(2)
        after = setup.job.model.text(theta)
    assert len(calls) == 2
    assert not torch.allclose(before, after)


def test_zero_shot_is_the_template(setup: Setup) -> None:
    """The whole set, and the mean of the same predictions on the clients' parts; no parameter plays a part."""
    whole, parts = score_zero_shot(setup.job, setup.tests)
    labels = dataset().test.labels
    predicted = setup.tests.predict(setup.job.model.zero_shot_logits, setup.tests.everything)
    assert whole.overall == pytest.approx(100 * np.mean(predicted == labels))
    each = [100 * np.mean(predicted[p] == labels[p]) for p in setup.tests.parts]
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


def theta(method: Method, who: int, client: Client) -> dict[str, float]:
    job = Job(method, None, 0)  # type: ignore[arg-type]
    params = {n: number(10 + i) for i, n in enumerate(job.first_server().params)}
    server = Server(3, params, {"near": {0: {"c": number(77)}}}, {"near": {1: 0}})
    return {n: v.item() for n, v in personal_theta(job, server, who, client).items()}


def test_a_model_with_parameters_of_its_own() -> None:
    """Its LOCAL parameters, the server's shared ones now, its cluster's copy; never what it trained before."""
    client = Client(local={"x": number(5)})
    assert theta(Personal(), 0, client) == {"g": 10, "c": 11, "x": 5, "f": 0}
    assert theta(Personal(), 1, client) == {"g": 10, "c": 77, "x": 5, "f": 0}
    assert theta(Personal(), 1, Client()) == {"g": 10, "c": 77, "x": 0, "f": 0}  # not visited yet: the first value


def test_a_model_without_parameters_of_its_own() -> None:
    """What the client last trained, before it was averaged; the server's for what it has not trained."""
    assert theta(Common(), 1, Client(tuned={"g": number(1), "c": number(2)})) == {"g": 1, "c": 2, "x": 12, "f": 0}
    assert theta(Common(), 1, Client()) == {"g": 10, "c": 77, "x": 12, "f": 0}


def test_a_client_is_tested_on_its_own_part(setup: Setup) -> None:
    """A trained client's score is that of its own parameters on its own pictures."""
    mine, server = some_theta(setup, 4), setup.job.first_server()
    found = score_client(setup.job, server, 2, Client(tuned=mine), setup.tests)
    part, labels = setup.tests.parts[2], dataset().test.labels
    with torch.no_grad():
        predicted = setup.job.model.logits(mine, setup.tests.pool.fetch(part)).argmax(1).numpy()
    assert found.overall == pytest.approx(100 * np.mean(predicted == labels[part]))
    assert found.per_class != score_client(setup.job, server, 2, Client(), setup.tests).per_class
