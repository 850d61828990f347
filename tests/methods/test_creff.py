"""CReFF, formula by formula, and what it is for: a classifier that does not forget rare classes."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from fedtailor.client.job import ClientState, Task
from fedtailor.client.step import client_step
from fedtailor.core.types import Params, Reply, Server
from fedtailor.methods import METHODS, Entry
from fedtailor.methods.creff import (
    BIAS,
    FEATURES,
    WEIGHT,
    CReFF,
    distance,
    gradient,
    matched,
    mean_gradients,
    retrained,
)
from fedtailor.runs.server_bytes import server_to_bytes
from fedtailor.simulation.build import Experiment
from fedtailor.simulation.engine import make_engine
from fedtailor.simulation.local import LocalEngine
from fedtailor.simulation.loop import run_round
from fedtailor.tuners import TUNERS
from fedtailor.tuners.resnet import ResNet
from world import world

SMALL = {"method.m": 6, "method.match_steps": 5, "method.retrain_epochs": 3}
TINY_NET = {"tuner.width": 2, "tuner.size": 8}


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(METHODS, "creff", Entry(CReFF, "head", "", 2022, "", "", tuners=("head", "resnet")))
    monkeypatch.setitem(TUNERS, "resnet", ResNet)


def small(tuner: str = "head", **more: Any) -> Experiment:
    return world("creff", tuner, **(TINY_NET if tuner == "resnet" else {}), **{**SMALL, **more})


def go(experiment: Experiment, engine: LocalEngine | None = None) -> tuple[Server, LocalEngine]:
    engine, server = engine or make_engine(experiment), experiment.job.first_server()
    while server.round < experiment.rounds:
        server, _ = run_round(experiment, server, engine)
    return server, engine


def equal(a: Params, b: Params) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[n], b[n]) for n in a)


def test_gradient_by_hand() -> None:
    """∂CE/∂W = mean (p − y) fᵀ, ∂CE/∂b = mean (p − y). With W = 0, b = (ln 3, 0): p = (3/4, 1/4).

    f = np.array([[1, 2], [3, 0]]); wrong = np.array([[3 / 4 - 1, 1 / 4]] * 2)  # both of class 0
    wrong.T @ f / 2, wrong.mean(0)  # [[-.5, -.25], [.5, .25]], [-.25, .25]
    """
    f, y = torch.tensor([[1.0, 2.0], [3.0, 0.0]]), torch.tensor([0, 0])
    weight, bias = gradient(f, y, torch.zeros(2, 2), torch.tensor([math.log(3), 0.0]))
    torch.testing.assert_close(weight, torch.tensor([[-0.5, -0.25], [0.5, 0.25]]))
    torch.testing.assert_close(bias, torch.tensor([-0.25, 0.25]))


def test_gradient_is_that_of_cross_entropy() -> None:
    """The closed form, for two sets of features at once, is what autograd finds of each alone."""
    rng = torch.Generator().manual_seed(0)
    f, W, b = (torch.randn(shape, generator=rng) for shape in ((2, 5, 4), (3, 4), (3,)))
    y = torch.tensor([[0, 1, 2, 2, 1], [2, 2, 2, 2, 2]])
    weights, biases = gradient(f, y, W, b)
    for i in range(2):
        leaves = [W.clone().requires_grad_(), b.clone().requires_grad_()]
        found = torch.autograd.grad(F.cross_entropy(F.linear(f[i], *leaves), y[i]), leaves)
        torch.testing.assert_close((weights[i], biases[i]), found)


def test_matching_distance_by_hand() -> None:
    """Row by row, and the bias as one: rows (1, 0), (0, 2) → 1; (1, 1), (2, 2) → 0; bias (1, 0), (−3, 0) → 2."""
    made = torch.tensor([[[1.0, 0.0], [1.0, 1.0]]]), torch.tensor([[1.0, 0.0]])
    real = torch.tensor([[[0.0, 2.0], [2.0, 2.0]]]), torch.tensor([[-3.0, 0.0]])
    assert distance(made, real).item() == pytest.approx(3.0, abs=1e-6)
    assert distance(real, real).item() == pytest.approx(0.0, abs=1e-6)


def test_means_are_over_the_clients_that_have_the_class() -> None:
    """However many samples they have: class 0 of clients 1 and 2 is (1 + 4)/2, class 2 is client 1's alone."""

    def reply(weight: float, **values: float) -> Reply:
        stats = {f"{c[1:]}.{part}": torch.full((2,), v) for c, v in values.items() for part in ("weight", "bias")}
        return Reply({}, weight=weight, stats=stats)

    mean = mean_gradients({2: reply(1000, c0=4.0), 1: reply(1, c0=1.0, c2=7.0), 5: reply(9)})
    assert {c: (w.tolist(), b.tolist()) for c, (w, b) in mean.items()} == {
        0: ([2.5, 2.5], [2.5, 2.5]),
        2: ([7.0, 7.0], [7.0, 7.0]),
    }


def test_matching_descends_and_leaves_other_classes_alone() -> None:
    rng = torch.Generator().manual_seed(1)
    W, b = torch.randn(3, 4, generator=rng), torch.zeros(3)
    v = torch.randn(3, 5, 4, generator=rng)
    real = {c: gradient(torch.randn(9, 4, generator=rng) + c, torch.full((9,), c), W, b) for c in (0, 2)}

    def away(v: torch.Tensor) -> float:
        return sum(distance(gradient(v[c], torch.full((5,), c), W, b), pair).item() for c, pair in real.items())

    once, often = matched(v, real, (W, b), 1, 0.1), matched(v, real, (W, b), 200, 0.1)
    assert away(often) < away(once) < away(v)
    assert away(often) < 0.2 * away(v)
    assert torch.equal(often[1], v[1])
    # One step is v − lr ∂distance/∂v, each class's own.
    one = v[2].clone().requires_grad_()
    (slope,) = torch.autograd.grad(distance(gradient(one, torch.full((5,), 2), W, b), real[2]), one)
    torch.testing.assert_close(once[2], v[2] - 0.1 * slope)
    assert torch.equal(matched(v, {}, (W, b), 9, 0.1), v)


def test_retraining_is_plain_sgd_on_a_new_classifier() -> None:
    """No epoch: a start within ±1/√D that is not zero. One epoch of one batch: a step along the gradient."""
    v = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(2))
    start = retrained(v, 0, 6, 0.5, torch.Generator().manual_seed(3))
    assert all(0 < part.abs().max() <= 0.5 for part in start)
    slopes = gradient(v.reshape(6, 4), torch.tensor([0, 0, 0, 1, 1, 1]), *start)
    for found, value, slope in zip(
        retrained(v, 1, 6, 0.5, torch.Generator().manual_seed(3)), start, slopes, strict=True
    ):
        torch.testing.assert_close(found, value - 0.5 * slope)
    assert not torch.equal(start[0], retrained(v, 0, 6, 0.5, torch.Generator().manual_seed(4))[0])


def test_retraining_shuffles_its_batches() -> None:
    """Two epochs in batches of four and two, drawn anew each time, as torch's own SGD goes."""
    v, y = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(2)), torch.tensor([0, 0, 0, 1, 1, 1])
    rng = torch.Generator().manual_seed(3)
    classifier = [part.requires_grad_() for part in retrained(v, 0, 4, 0.5, rng)]
    sgd = torch.optim.SGD(classifier, lr=0.5)
    for _ in range(2):
        for index in torch.randperm(6, generator=rng).split(4):
            sgd.zero_grad()
            F.cross_entropy(F.linear(v.reshape(6, 4)[index], *classifier), y[index]).backward()
            sgd.step()
    for found, expected in zip(retrained(v, 2, 4, 0.5, torch.Generator().manual_seed(3)), classifier, strict=True):
        torch.testing.assert_close(found, expected.detach())


@pytest.mark.parametrize("tuner", ["head", "resnet"])
def test_a_client_sends_the_gradients_of_its_classes(tuner: str) -> None:
    """Of the received re-trained classifier on the received network's features: autograd's, over all its pictures."""
    experiment = small(tuner)
    job, data = experiment.job, experiment.client_data[0]
    y = data.labels
    some = data.labelled((y != 2).nonzero().flatten(), y[y != 2])
    rng = torch.Generator().manual_seed(0)
    params = {n: v + 0.1 * torch.randn(v.shape, generator=rng) for n, v in job.first_server().params.items()}
    reply, _ = client_step(job, 0, job.method.train, Task("train", 0, params), ClientState(), some)
    assert set(reply.params) == set(params) - {WEIGHT, BIAS}
    assert set(reply.stats) == {f"{c}.{part}" for c in (0, 1, 3, 4) for part in ("weight", "bias")}
    theta = {n: v.clone().requires_grad_() for n, v in params.items()}
    for c in (0, 1, 3, 4):
        x = torch.cat([view.x for view in some.views()])[some.labels == c]
        logits = F.linear(job.model.features(theta, x), theta[WEIGHT], theta[BIAS])
        loss = F.cross_entropy(logits, torch.full((len(x),), c))
        found = torch.autograd.grad(loss, [theta[WEIGHT], theta[BIAS]])
        for part, g in zip(("weight", "bias"), found, strict=True):
            torch.testing.assert_close(reply.stats[f"{c}.{part}"], g, atol=1e-5, rtol=1e-4)


def test_a_client_without_pictures_sends_none() -> None:
    experiment = small()
    empty = experiment.client_data[0].labelled(torch.empty(0, dtype=torch.long), torch.empty(0, dtype=torch.long))
    job = experiment.job
    task = Task("train", 0, job.first_server().params)
    reply, _ = client_step(job, 0, job.method.train, task, ClientState(), empty)
    assert reply.stats == {}
    assert reply.weight == 0


@pytest.mark.parametrize("tuner", ["head", "resnet"])
def test_net_and_head_are_fedavg(tuner: str) -> None:
    """What is broadcast and averaged is FedAvg's, bit for bit; m=0 is FedAvg altogether."""
    server, _ = go(small(tuner))
    fedavg, _ = go(world("fedavg", tuner, **(TINY_NET if tuner == "resnet" else {})))
    shared = {n: v for n, v in server.params.items() if n not in (WEIGHT, BIAS)}
    assert equal(shared, fedavg.params)
    neutral, _ = go(small(tuner, **{"method.m": 0}))
    assert equal(neutral.params, fedavg.params)
    assert not neutral.state


def test_a_round_on_the_server() -> None:
    """Features from the last round, matched to the mean gradients at the classifier that was sent; then a new one."""
    experiment = small()
    method, engine = experiment.job.method, make_engine(experiment)
    first = experiment.job.first_server()
    assert torch.equal(first.params[WEIGHT], first.params["head.weight"])
    server = replace(method.round(first, [0, 1], engine), round=1)
    assert server.state[FEATURES].shape == (5, 6, 16)
    assert not torch.equal(server.params[WEIGHT], first.params[WEIGHT])
    replies = engine(method.train, server, [0, 2])
    after = method.aggregate(server, replies)
    expected = matched(
        server.state[FEATURES], mean_gradients(replies), (server.params[WEIGHT], server.params[BIAS]), 5, 0.1
    )
    assert torch.equal(after.state[FEATURES], expected)
    assert not torch.equal(after.state[FEATURES], server.state[FEATURES])
    # Another round, another draw: the same features give another new classifier.
    again = method.aggregate(replace(server, round=2), replies)
    assert torch.equal(again.state[FEATURES], after.state[FEATURES])
    assert not torch.equal(again.params[WEIGHT], after.params[WEIGHT])


def test_predictions() -> None:
    """The shared model's by the re-trained classifier, a client's own by the head that it trained."""
    experiment = small("resnet")
    job, (server, _) = experiment.job, go(experiment)
    x = experiment.tests.features.fetch(experiment.tests.everything)
    f = job.model.features(server.params, x)
    expected = f @ server.params[WEIGHT].T + server.params[BIAS]
    torch.testing.assert_close(job.method.predict_shared(job.model, server.params, x), expected)
    own = job.method.predict(job.model, server.params, x)
    torch.testing.assert_close(own, f @ server.params["head.weight"].T + server.params["head.bias"])
    assert not torch.allclose(own, expected)


@pytest.mark.parametrize("tuner", ["head", "resnet"])
def test_same_bits_backwards_and_on_the_wire(tuner: str) -> None:
    once, _ = go(small(tuner))
    experiment = small(tuner, engine="posted")

    class Backwards(CReFF):
        def cohort(self, *given: Any) -> list[int]:
            return super().cohort(*given)[::-1]

    turned = replace(experiment, job=replace(experiment.job, method=Backwards(**dict(experiment.job.method))))
    assert server_to_bytes(go(turned)[0]) == server_to_bytes(once)
    assert server_to_bytes(go(small(tuner, seed=4))[0]) != server_to_bytes(once)


def test_rare_classes_are_not_forgotten() -> None:
    """40 : 1 data, three overlapping classes. FedAvg's head favours the head class; the re-trained classifier, made
    from one direction of equal weight for each class, does not."""
    rng = torch.Generator().manual_seed(0)
    centres = 2 * torch.eye(3, 8)

    def draw(counts: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor]:
        y = torch.arange(3).repeat_interleave(torch.tensor(counts))
        return centres[y] + torch.randn(len(y), 8, generator=rng), y

    def sent(f: torch.Tensor, y: torch.Tensor, at: tuple[torch.Tensor, torch.Tensor]) -> Params:
        pairs = {c: gradient(f[y == c], y[y == c], *at) for c in range(3)}
        return {f"{c}.{part}": pairs[c][i] for c in pairs for i, part in enumerate(("weight", "bias"))}

    method = CReFF(m=20, match_steps=100, match_lr=0.5)
    clients = [draw((200, 50, 5)), draw((200, 50, 5))]
    head = torch.zeros(3, 8), torch.zeros(3)
    server = Server(0, {WEIGHT: head[0], BIAS: head[1]}, seed=1)
    for t in range(5):
        at = server.params[WEIGHT], server.params[BIAS]
        replies = {k: Reply({}, stats=sent(f, y, at)) for k, (f, y) in enumerate(clients)}
        server = method.aggregate(replace(server, round=t), replies)
    f, y = (torch.cat(parts) for parts in zip(*clients, strict=True))
    for _ in range(500):  # FedAvg's head, at its best: gradient descent on everyone's data
        slopes = gradient(f, y, *head)
        head = head[0] - 0.3 * slopes[0], head[1] - 0.3 * slopes[1]
    f, y = draw((1000, 1000, 1000))

    def recalls(weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        right = F.linear(f, weight, bias).argmax(1) == y
        return torch.stack([right[y == c].float().mean() for c in range(3)])

    plain, balanced = recalls(*head), recalls(server.params[WEIGHT], server.params[BIAS])
    assert plain[0] > 0.9 > 0.5 > plain[2]
    assert balanced[2] > plain[2] + 0.2
    assert balanced.mean() > plain.mean()
    assert balanced.std() < plain.std()
