"""RUCR: its formulas by hand, what is sent when, and that it learns on a network from scratch and on a linear probe."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from fedtailor.base.rng import generator
from fedtailor.client.job import ClientState, Task, theta_of
from fedtailor.core.losses import log_prior
from fedtailor.core.optim import optimise
from fedtailor.core.types import Me, Params, Pass, Reply, Server
from fedtailor.methods import METHODS, Entry
from fedtailor.methods.rucr import RUCR, contrast, mixed, unified
from fedtailor.runs.server_bytes import server_from_bytes, server_to_bytes
from fedtailor.simulation.build import Experiment
from fedtailor.simulation.engine import make_engine
from fedtailor.simulation.local import LocalEngine
from fedtailor.simulation.loop import run_round
from fedtailor.tuners import TUNERS
from fedtailor.tuners.resnet import ResNet
from world import world

tuners = pytest.mark.parametrize("tuner", ["resnet", "head"])
SMALL = {"resnet": {"tuner.width": 4}, "head": {}}
NAMES = ("head.weight", "head.bias")


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = Entry(RUCR, "resnet", "Huang et al., IEEE TIFS", 2024, "long-tailed", "…", tuners=("resnet", "head"))
    monkeypatch.setitem(METHODS, "rucr", entry)
    monkeypatch.setitem(TUNERS, "resnet", ResNet)


def small(tuner: str, method: str = "rucr", **more: Any) -> Experiment:
    brief = {"method.crt": 2, "method.crt_epochs": 3, "method.n": 4} if method == "rucr" else {}
    return world(method, tuner, **{**SMALL[tuner], **brief, **more})


class Listening(LocalEngine):
    """Keeps every client step: client, what went down, what came up, and the client before."""

    seen: list[tuple[int, Task, Reply, ClientState]]

    def step(self, pass_: Pass, k: int, task: Task) -> Reply:
        self.seen = getattr(self, "seen", [])
        before = self.clients[k]
        reply = super().step(pass_, k, task)
        self.seen.append((k, task, reply, before))
        return reply


def go(experiment: Experiment, rounds: int | None = None) -> tuple[Server, Listening]:
    engine, server = Listening(experiment.job, experiment.client_data), experiment.job.first_server()
    for _ in range(experiment.rounds if rounds is None else rounds):
        server, _ = run_round(experiment, server, engine)
    return server, engine


def equal(a: Params, b: Params) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[n], b[n]) for n in a)


# --- formulas -------------------------------------------------------------------------------------------------------


def test_prototypes_by_hand() -> None:
    """Two clients, three classes, two features. Class 0: one sample (3, 4) and three that sum to (6, 0).

    prototypes[0] = (9, 4) / 4 = (2.25, 1)            # the mean of all four
    directions[0] = (1·(.6, .8) + 3·(1, 0)) / 4       # (0.9, 0.2)
    Class 1: one client only, two samples that sum to (0, 2): (0, 1) and (0, 1). Class 2: nobody.
    """
    one = {"sums": torch.tensor([[3.0, 4], [0, 0], [0, 0]]), "counts": torch.tensor([1, 0, 0])}
    two = {"sums": torch.tensor([[6.0, 0], [0, 2], [0, 0]]), "counts": torch.tensor([3, 2, 0])}
    found = unified([one, two], {})
    torch.testing.assert_close(found["prototypes"], torch.tensor([[2.25, 1], [0, 1], [0, 0]]))
    torch.testing.assert_close(found["directions"], torch.tensor([[0.9, 0.2], [0, 1], [0, 0]]))
    last = {"prototypes": torch.full((3, 2), 7.0), "directions": torch.full((3, 2), 8.0)}
    found = unified([one, two], last)
    assert found["prototypes"].tolist()[2] == [7, 7]  # as it was
    assert found["directions"].tolist()[2] == [8, 8]
    torch.testing.assert_close(found["prototypes"][0], torch.tensor([2.25, 1]))


def test_contrast_by_hand() -> None:
    """f = (3, 4), prototypes (2, 0) and (0, 5), a third that the client lacks; t = 0.5, π = (.5, .25, .25).

    l = np.array([.6 / .5, .8 / .5, 0]); l[1] += np.log(.25); loss = -l[1] + np.log(np.exp(l).sum())   # 1.5016002
    """
    f, y = torch.tensor([[3.0, 4.0]]), torch.tensor([1])
    prototypes = torch.tensor([[2.0, 0], [0, 5], [0, 0]])
    prior = log_prior(torch.tensor([2, 1, 1]))
    found = contrast(f, prototypes, prior, y, 0.5)
    assert found.item() == pytest.approx(1.5016002, abs=1e-6)
    both = contrast(f.repeat(2, 1), prototypes, prior, torch.tensor([1, 0]), 0.5)
    other = F.cross_entropy(torch.tensor([1.2 + math.log(0.5), 1.6, 0]), torch.tensor(0))
    assert both.item() == pytest.approx((found + other).item() / 2, abs=1e-6)


def test_virtual_features_by_hand() -> None:
    """v = λ p_c + (1 − λ) f/‖f‖ for every class with a prototype, λ in its range, f any local feature."""
    directions = torch.tensor([[1.0, 0, 0], [0, 0, 0], [0, 0.5, 0]])
    f = torch.tensor([[0, 0, 4.0], [0, 0, -2]])
    x, y = mixed(directions, f, 500, (0.35, 0.95), torch.Generator().manual_seed(0))
    assert torch.bincount(y, minlength=3).tolist() == [500, 0, 500]
    lam = 1 - x[:, 2].abs()  # both features have length 1 along the third axis
    torch.testing.assert_close(x[:500, 0], lam[:500])
    torch.testing.assert_close(x[500:, 1], 0.5 * lam[500:])
    assert 0.35 <= lam.min() < 0.37
    assert 0.93 < lam.max() <= 0.95
    assert 400 < (x[:, 2] > 0).sum() < 600
    again, _ = mixed(directions, f, 500, (0.35, 0.95), torch.Generator().manual_seed(0))
    assert torch.equal(x, again)


@tuners
def test_loss_is_the_task_and_a_weighted_contrast(tuner: str) -> None:
    experiment = small(tuner, rounds=1, fraction=1.0)
    _, engine = go(experiment)
    k, task, _, client = next(s for s in engine.seen if s[1].pass_name == "train")
    model, method = experiment.job.model, experiment.job.method
    theta = theta_of(experiment.job, task.params, client)
    batch = next(experiment.client_data[k].batches(6, False, torch.Generator().manual_seed(0)))
    draws = batch.rng.get_state()  # type: ignore[union-attr]
    found = method.loss(model, theta, batch, {**theta, **task.inbox})
    batch.rng.set_state(draws)  # type: ignore[union-attr]
    f = model.features(theta, batch.x, batch.rng)
    logits = F.linear(f, theta["head.weight"], theta["head.bias"])
    far = contrast(f, task.inbox["prototypes"], task.inbox["prior"], batch.y, 0.9)
    torch.testing.assert_close(found, F.cross_entropy(logits, batch.y) + 0.15 * far)


# --- a round --------------------------------------------------------------------------------------------------------


@tuners
def test_measuring_sends_sums_of_features_and_counts(tuner: str) -> None:
    experiment = small(tuner, rounds=1, fraction=1.0)
    _, engine = go(experiment)
    k, task, reply, client = engine.seen[0]
    assert task.pass_name == "measure"
    assert reply.stats.keys() == {"sums", "counts"}
    assert not reply.params
    model, data = experiment.job.model, experiment.client_data[k]
    f = model.features(theta_of(experiment.job, task.params, client), next(data.views()).x)
    for c in range(model.classes):
        torch.testing.assert_close(reply.stats["sums"][c], f[data.labels == c].sum(0), atol=1e-4, rtol=1e-5)
    assert torch.equal(reply.stats["counts"], data.counts())


@tuners
def test_a_client_is_sent_the_prototypes_of_its_classes(tuner: str) -> None:
    experiment = small(tuner, rounds=1, fraction=0.6)
    server, engine = go(experiment)
    first = {k: r.stats for k, t, r, _ in engine.seen[:2] if t.pass_name == "measure"}
    common = unified([first[k] for k in sorted(first)], {})["prototypes"]
    total = sum(s["counts"] for s in first.values())
    lacking = 0
    for k, task, _, _ in (s for s in engine.seen if s[1].pass_name == "train"):
        there = first[k]["counts"] > 0
        lacking += int((~there).sum())
        assert torch.equal(task.inbox["prototypes"][there], common[there])
        assert not task.inbox["prototypes"][~there].any()
        torch.testing.assert_close(task.inbox["prior"].exp(), total / total.sum())  # the cohort's, not its own
    assert lacking  # or the mask was not tested
    assert server.state.keys() == {"prototypes", "directions"}


@tuners
def test_the_classifier_is_re_trained_in_the_last_rounds(tuner: str) -> None:
    """Alone, from the averaged one, on virtual features; the one that is sent to train on stays the averaged one."""
    experiment = small(tuner, rounds=3, fraction=1.0)
    engine, server = Listening(experiment.job, experiment.client_data), experiment.job.first_server()
    for t in range(3):
        engine.seen = []
        server, _ = run_round(experiment, server, engine)
        passes = [task.pass_name for _, task, _, _ in engine.seen]
        averaged = {n: mean(engine, "train", n) for n in NAMES}
        assert all(torch.allclose(server.params[n], averaged[n]) for n in NAMES)
        made = {n: server.params[f"rectified.{n}"] for n in NAMES}
        if t == 0:
            assert passes == ["measure"] * 4 + ["train"] * 4
            assert equal(made, {n: server.params[n] for n in NAMES})
            continue
        assert passes == ["measure"] * 4 + ["train"] * 4 + ["measure"] * 4 + ["rectify"] * 4
        assert all(reply.params.keys() == {f"rectified.{n}" for n in NAMES} for _, _, reply, _ in engine.seen[-4:])
        assert all(torch.allclose(made[n], mean(engine, "rectify", f"rectified.{n}")) for n in NAMES)
        assert not equal(made, {n: server.params[n] for n in NAMES})
        assert all(
            torch.equal(task.inbox["directions"], server.state["directions"]) for _, task, _, _ in engine.seen[-4:]
        )


def mean(engine: Listening, pass_: str, name: str) -> torch.Tensor:
    replies = [(len(engine.data[k]), r.params[name]) for k, t, r, _ in engine.seen if t.pass_name == pass_]
    return sum(n * value for n, value in replies) / sum(n for n, _ in replies)  # type: ignore[return-value]


@tuners
def test_re_training_is_plain_sgd_on_virtual_features(tuner: str) -> None:
    """W ← W − η ∂CE, batch by batch, over the features that the same draws give."""
    experiment = small(tuner, rounds=1, fraction=1.0, **{"method.crt_batch": 7, "method.crt_lr": 0.5})
    _, engine = go(experiment)
    k, task, reply, client = engine.seen[-1]
    theta, model = theta_of(experiment.job, task.params, client), experiment.job.model
    rng = generator(experiment.job.seed, "round", 0, "client", k, "rectify")
    f = model.features(theta, next(experiment.client_data[k].views()).x)
    x, y = mixed(task.inbox["directions"], f, 4, (0.35, 0.95), rng)
    assert len(y) == 4 * 5
    W, b = (theta[n].clone() for n in NAMES)
    for _ in range(3):
        for i in torch.randperm(20, generator=rng).split(7):
            error = (x[i] @ W.T + b).softmax(1) - F.one_hot(y[i], 5)  # ∂CE/∂logits, times the batch
            W, b = W - 0.5 * error.T @ x[i] / len(i), b - 0.5 * error.mean(0)
    torch.testing.assert_close(reply.params["rectified.head.weight"], W, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(reply.params["rectified.head.bias"], b, atol=1e-5, rtol=1e-4)
    assert reply.weight == len(experiment.client_data[k])


def test_a_class_nobody_has_keeps_its_prototype() -> None:
    experiment = small("head", rounds=2, fraction=1.0)
    method, server = experiment.job.method, experiment.job.first_server()
    assert isinstance(method, RUCR)

    class Without(RUCR):
        def measure(self, model: Any, me: Me, theta: Params) -> Reply:
            stats = super().measure(model, me, theta).stats
            keep = torch.arange(5) != 3  # nobody has class 3 any more
            return Reply({}, stats={"sums": stats["sums"] * keep[:, None], "counts": stats["counts"] * keep})

    server, _ = method.unify(server, range(4), make_engine(experiment))
    first = server.state
    moved = {n: v + 1 for n, v in first.items()}
    server, _ = method.unify(Server(1, server.params, state=moved), range(4), make_engine(experiment))
    assert equal(server.state, first)  # all are seen, none is kept
    engine = LocalEngine(replace(experiment.job, method=Without(**dict(method))), experiment.client_data)
    server, _ = Without(**dict(method)).unify(Server(1, server.params, state=moved), range(4), engine)
    assert torch.equal(server.state["prototypes"][3], moved["prototypes"][3])
    assert torch.equal(server.state["prototypes"][2], first["prototypes"][2])


@tuners
def test_predictions(tuner: str) -> None:
    """The server's model has the re-trained classifier, a client's its own."""
    experiment = small(tuner, rounds=1)
    server, _ = go(experiment)
    model, method = experiment.job.model, experiment.job.method
    x = experiment.tests.features.fetch(experiment.tests.everything)
    f = model.features(server.params, x)
    shared = F.linear(f, server.params["rectified.head.weight"], server.params["rectified.head.bias"])
    torch.testing.assert_close(method.predict_shared(model, server.params, x), shared)
    torch.testing.assert_close(method.predict(model, server.params, x), model.logits(server.params, x))
    assert not torch.equal(shared, model.logits(server.params, x))


# --- laws, until it is registered -----------------------------------------------------------------------------------


@tuners
def test_neutral_is_fedavg(tuner: str) -> None:
    neutral = {f"method.{key}": value for key, value in RUCR.neutral.items()}
    server, engine = go(small(tuner, **neutral))
    plain, _ = go(small(tuner, "fedavg"))
    assert equal(server.params, plain.params)
    assert {task.pass_name for _, task, _, _ in engine.seen} == {"train"}
    contrasted, _ = go(small(tuner, **{"method.crt": 0}))
    assert equal(contrasted.params, plain.params) == (tuner == "head")  # whose features nothing can pull anywhere


@tuners
def test_only_the_classifier_differs_without_contrast(tuner: str) -> None:
    server, _ = go(small(tuner, **{"method.weight": 0.0}))
    plain, _ = go(small(tuner, "fedavg"))
    assert equal({n: server.params[n] for n in plain.params}, plain.params)
    assert not torch.equal(server.params["rectified.head.bias"], plain.params["head.bias"])


@tuners
def test_a_pass_is_the_descent_of_its_gradient(tuner: str) -> None:
    experiment = small(tuner, clients=1, fraction=1.0, rounds=1)
    _, engine = go(experiment)
    _, task, reply, client = next(s for s in engine.seen if s[2].params)
    theta, job = theta_of(experiment.job, task.params, client), experiment.job
    gradient = job.method.gradient(job.model, {**theta, **task.inbox})
    rng = generator(job.seed, "round", 0, "client", 0, task.pass_name)
    end = optimise(gradient, {n: theta[n] for n in reply.params}, experiment.client_data[0], job.method.local, 0, rng)
    assert equal(end, reply.params)


@tuners
def test_one_client_is_central_training(tuner: str) -> None:
    experiment = small(tuner, clients=1, fraction=1.0, rounds=3)
    server, engine = go(experiment)
    reached: Params = {}
    for _, task, reply, _ in engine.seen:
        again = {n for n in reached if not torch.equal(task.params[n], reached[n])}
        assert not again
        reached |= reply.params
    assert equal({n: reached[n] for n in server.params}, server.params)


@tuners
def test_same_bits_in_any_order_and_after_a_stop(tuner: str) -> None:
    experiment = small(tuner, fraction=1.0)  # two numbers add up alike in either order, four may not
    once, _ = go(experiment)

    class Backwards(LocalEngine):
        def __call__(self, *given: Any) -> dict[int, Reply]:
            return dict(reversed(super().__call__(*given).items()))

    def end(server: Server, engine: LocalEngine) -> bytes:
        while server.round < experiment.rounds:
            server, _ = run_round(experiment, server, engine)
        return server_to_bytes(server)

    assert end(experiment.job.first_server(), Backwards(experiment.job, experiment.client_data)) == server_to_bytes(
        once
    )
    half, _ = go(experiment, 1)
    back = experiment.job.resumed(server_from_bytes(server_to_bytes(half)))
    assert end(back, make_engine(experiment)) == server_to_bytes(once)


def test_a_client_without_samples_re_trains_nothing() -> None:
    """As may happen where a labeler chose nothing."""
    experiment = small("head", rounds=1)
    empty = experiment.client_data[0].labelled(torch.empty(0, dtype=torch.long), torch.empty(0, dtype=torch.long))
    theta = experiment.job.start
    me = Me(0, 0, empty, {}, {"directions": torch.ones(5, 16)}, torch.Generator(), lambda x: x)
    method = experiment.job.method
    assert isinstance(method, RUCR)
    assert method.rectify(experiment.job.model, me, theta).params == {}
    assert not method.measure(experiment.job.model, me, theta).stats["sums"].any()


def test_settings_of_the_released_command() -> None:
    """CIFAR-10-LT: weight .15, temperature .9, 100 virtual features a class, 50 epochs at .01 in the last 20 rounds."""
    method = RUCR()
    assert (method.weight, method.tau, method.crt, method.n, method.lam) == (0.15, 0.9, 20, 100, (0.35, 0.95))
    assert (method.crt_epochs, method.crt_lr, method.crt_batch) == (50, 0.01, 256)
