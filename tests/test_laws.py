"""The laws that every method obeys with every tuner it allows, on a tiny random CLIP."""

from __future__ import annotations

from dataclasses import replace
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from fedtailor.base.rng import generator
from fedtailor.client.codec import client_to_bytes
from fedtailor.client.job import ClientState, Task, theta_of
from fedtailor.client.step import LazyBalance, client_step, labelled_data
from fedtailor.clip.load import digest
from fedtailor.core.method import Method
from fedtailor.core.optim import optimise
from fedtailor.core.types import LOCAL, Params, Reply, Server
from fedtailor.methods import METHODS
from fedtailor.methods.recipe import flat
from fedtailor.methods.released.relay import CarriedMomentum
from fedtailor.runs.execute import train
from fedtailor.runs.folder import RunFolder, server_to_bytes
from fedtailor.simulation.build import Experiment
from fedtailor.simulation.engine import make_engine
from fedtailor.simulation.local import LocalEngine
from fedtailor.simulation.loop import run_round
from posted import task_to_bytes
from world import combinations, settings, under_law, world

every = pytest.mark.parametrize(("method", "tuner"), under_law(combinations()))
TRAINED = [(m, t) for m, t in combinations() if METHODS[m].method.trains]
trained = pytest.mark.parametrize(("method", "tuner"), under_law(TRAINED))
WITHOUT_HOLDOUT = {"capt": {"method.bandit": False}}


def equal(a: Params, b: Params) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[n], b[n]) for n in a)


def go(
    experiment: Experiment, engine: LocalEngine | None = None, backwards: bool = False
) -> tuple[Server, dict[int, ClientState]]:
    """All rounds of a setup, without tests or files."""
    if backwards:
        experiment = replace(experiment, job=replace(experiment.job, method=reversing(experiment.job.method)))
    engine = engine or make_engine(experiment)
    server = experiment.job.first_server()
    while server.round < experiment.rounds:
        server, _ = run_round(experiment, server, engine)
    return server, engine.clients


@cache
def straight(method: str, tuner: str) -> tuple[Experiment, Server, dict[int, ClientState]]:
    """One plain run of each combination, which several laws look at."""
    experiment = world(method, tuner)
    return experiment, *(go(experiment) if experiment.job.method.trains else (experiment.job.first_server(), {}))


def reversing(method: Method) -> Method:
    """The same method, naming its cohorts backwards."""

    class Backwards(type(method)):  # type: ignore[misc]
        def cohort(self, *given: Any) -> list[int]:
            return super().cohort(*given)[::-1]

    return Backwards(**dict(method))


def same_state(a: tuple[Server, dict[int, ClientState]], b: tuple[Server, dict[int, ClientState]]) -> bool:
    clients = all(equal(a[1][k].local, b[1][k].local) and equal(a[1][k].memory, b[1][k].memory) for k in a[1])
    return a[1].keys() == b[1].keys() and clients and server_to_bytes(a[0]) == server_to_bytes(b[0])


@trained
def test_local_never_goes_up(method: str, tuner: str) -> None:
    """No reply that leaves a client names a LOCAL parameter or carries what was to be kept."""
    experiment = world(method, tuner)
    seen: list[Reply] = []

    class Listening(LocalEngine):
        def call(self, k: int, task: Task) -> Reply:
            seen.append(super().call(k, task))
            return seen[-1]

    go(experiment, Listening(experiment.job, experiment.client_data))
    local = {name for name, scope in experiment.job.scopes.items() if scope == LOCAL}
    assert seen
    assert all(not local & reply.params.keys() and not reply.keep for reply in seen)
    assert not [stat for reply in seen for stat in reply.stats if any(name in stat for name in local)]


@trained
def test_something_is_learned(method: str, tuner: str) -> None:
    """A law of its own kind: a method that changes nothing would pass all the others."""
    experiment, server, clients = straight(method, tuner)
    if server.params:
        assert not equal(server.params, experiment.job.first_server().params)
    else:  # nothing is shared: everything is the clients' own
        assert all(not equal(client.local, experiment.job.start) for client in clients.values())


@trained
def test_same_seed_or_permuted_cohort_same_bits(method: str, tuner: str) -> None:
    once = straight(method, tuner)[1:]
    assert same_state(once, go(world(method, tuner), backwards=True))
    other = go(world(method, tuner, seed=4))
    assert not same_state(once, other)


@pytest.mark.parametrize(("method", "tuner"), under_law([(m, t) for m, t in TRAINED if METHODS[m].method.neutral]))
def test_neutral_values_give_fedavg(method: str, tuner: str) -> None:
    """Bit for bit, whatever a method calls its shared branch and whatever its server remembers besides."""
    run = settings(method, tuner)
    same = {f"tuner.{key}": value for key, value in flat(run.tuner.options).items()}
    same |= {f"local.{key}": value for key, value in run.local.model_dump(exclude={"betas"}).items()}
    neutral = {f"method.{key}": value for key, value in METHODS[method].method.neutral.items()}
    labels = {f"labels.{key}": value for key, value in run.labels.model_dump().items()}
    who = {"fraction": 1.0 if METHODS[method].method.everyone_first else 0.6}
    fedavg = shared(go(world("fedavg", tuner, **same, **labels, **who)))
    assert equal(shared(go(world(method, tuner, **neutral, **who))), fedavg)
    assert not equal(shared(go(world(method, tuner, **who))), fedavg)


def shared(state: tuple[Server, dict[int, ClientState]]) -> Params:
    return {name.removeprefix("global."): value for name, value in state[0].params.items()}


@trained
def test_stop_and_resume_equals_straight_through(method: str, tuner: str, tmp_path: Path) -> None:
    experiment = world(method, tuner, every=2)

    def rows(store: RunFolder) -> list[dict[str, Any]]:
        return [{k: v for k, v in r.items() if k not in {"seconds", "peak_rss_mb"}} for r in store.rounds()]

    straight = RunFolder.create(tmp_path / "straight", experiment.run, {})
    list(train(experiment, straight))
    broken = RunFolder.create(tmp_path / "broken", experiment.run, {})
    next(train(experiment, broken))  # one round, then the process is gone
    list(train(world(method, tuner, every=2), broken, resuming=True))
    assert rows(straight) == rows(broken)
    assert len(rows(straight)) == experiment.rounds
    saved, saved_too = straight.resume(), broken.resume()
    assert saved is not None
    assert saved_too is not None
    assert server_to_bytes(saved[0]) == server_to_bytes(saved_too[0])


@every
def test_clip_is_unchanged(method: str, tuner: str) -> None:
    experiment = straight(method, tuner)[0]
    assert digest(experiment.job.model.clip) == experiment.weights
    assert not any(value.requires_grad for value in experiment.job.model.clip.parameters())


@trained
def test_one_client_is_central_training(method: str, tuner: str) -> None:
    """With a single client a round is that client's descent, and nothing the server does changes it."""
    experiment = world(method, tuner, clients=1, fraction=1.0, rounds=2)
    reached: Params = {}
    server_has = bool(experiment.job.first_server().params)

    class Following(LocalEngine):
        def call(self, k: int, task: Task) -> Reply:
            assert all(torch.equal(task.params[n], reached[n]) for n in reached if n in task.params)
            reply = super().call(k, task)
            reached.update(reply.params if server_has else self.clients[k].local)
            return reply

    server, _ = go(experiment, Following(experiment.job, experiment.client_data))
    assert reached
    averaged = {
        n: v for n, v in server.params.items() if not any(fnmatchcase(n, p) for p in experiment.job.method.made)
    }
    assert equal({n: reached[n] for n in averaged}, averaged)


@trained
def test_a_pass_is_the_descent_of_its_gradient(method: str, tuner: str) -> None:
    """The first pass that trains ends where plain SGD along method.gradient ends, over the same batches."""
    experiment = world(method, tuner, clients=1, fraction=1.0, rounds=1, **WITHOUT_HOLDOUT.get(method, {}))
    tasks: list[tuple[Task, ClientState, Reply]] = []

    class Keeping(LocalEngine):
        def call(self, k: int, task: Task) -> Reply:
            client = self.clients[k]
            reply = super().call(k, task)
            tasks.append((task, client, reply))
            return reply

    engine = Keeping(experiment.job, experiment.client_data)
    go(experiment, engine)
    job = experiment.job
    task, client, reply = next((t, c, r) for t, c, r in tasks if r.params or not job.first_server().params)
    theta = theta_of(job, task.params, client)
    (who,) = job.method.everyone(1)
    rng = generator(job.seed, "round", 0, "client", who, task.pass_name)
    data = labelled_data(job, who, client, experiment.client_data[who])
    if job.rebalancer is not None:
        draws = generator(job.seed, "round", 0, "client", who, task.pass_name, "rebalance")
        data = data.balanced(LazyBalance(job.rebalancer, client, draws))
    gradient = job.method.gradient(job.model, {**theta, **task.inbox})
    end = optimise(
        gradient,
        {n: theta[n] for n in theta if n in reply.params or job.scopes[n] == LOCAL},
        data,
        job.method.local,
        0,
        rng,
    )
    sent = reply.params or engine.clients[who].local
    assert equal({n: end[n] for n in sent}, sent)


@trained
def test_passes_are_pure(method: str, tuner: str) -> None:
    """Every visit of a round, made twice, gives the same, and what went in is as it was."""
    experiment = world(method, tuner, rounds=1)
    calls: list[tuple[int, Task, ClientState]] = []

    class Keeping(LocalEngine):
        def call(self, k: int, task: Task) -> Reply:
            calls.append((k, task, self.clients[k]))
            return super().call(k, task)

    go(experiment, Keeping(experiment.job, experiment.client_data))
    assert calls
    for k, task, client in calls:
        before = task_to_bytes(task), client_to_bytes(client)
        first, kept = client_step(experiment.job, k, task, client, experiment.client_data[k])
        second, kept_too = client_step(experiment.job, k, task, client, experiment.client_data[k])
        assert equal(first.params, second.params)
        assert equal(first.stats, second.stats)
        assert equal(kept.local, kept_too.local)
        assert equal(kept.memory, kept_too.memory)
        assert before == (task_to_bytes(task), client_to_bytes(client))


@every
def test_predictions_are_finite_and_follow_their_images(method: str, tuner: str) -> None:
    experiment, server, clients = straight(method, tuner)
    theta = {**experiment.job.start, **server.params, **clients.get(0, ClientState()).local}
    x = experiment.tests.pool.fetch(experiment.tests.everything)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    for predict in (experiment.job.method.predict, experiment.job.method.predict_shared):
        with torch.no_grad():
            logits = predict(experiment.job.model, theta, x)
            turned = predict(experiment.job.model, theta, x[order])
        assert logits.shape == (len(x), experiment.job.model.classes)
        assert torch.isfinite(logits).all()
        torch.testing.assert_close(turned, logits[order], atol=1e-4, rtol=1e-4)


@trained
@pytest.mark.parametrize("engine", ["posted"])
def test_engines_agree(method: str, tuner: str, engine: str) -> None:
    assert same_state(go(world(method, tuner, engine=engine)), straight(method, tuner)[1:])


RELEASED: dict[str, tuple[str, dict[str, Any]]] = {
    "fedavg": ("text_prompt", {}),
    "capt": ("coupled+class_prompt", {"method.against": "text"}),  # the tiny CLIP's widths differ
    "fedcopl": ("text_prompt+visual_prompt", {}),
    "fedpurel": ("text_prompt", {}),
}


@pytest.mark.parametrize("method", RELEASED)
def test_released_methods_obey_too(method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients one after the other, momentum carried on: still the same bits on every engine and after a stop."""
    tuner, more = RELEASED[method]

    def again(**settings: Any) -> Experiment:
        return world(f"{method}-released", tuner, **more, **settings)

    experiment, seen = again(), list[Reply]()

    class Listening(LocalEngine):
        def call(self, k: int, task: Task) -> Reply:
            seen.append(super().call(k, task))
            return seen[-1]

    once = go(experiment, Listening(experiment.job, experiment.client_data))
    local = [name for name, scope in experiment.job.scopes.items() if scope == LOCAL]
    assert any(stat.startswith("velocity.") for reply in seen for stat in reply.stats)
    assert not [stat for reply in seen for stat in reply.stats if any(name in stat for name in local)]
    assert same_state(once, go(again(engine="posted")))
    descent = type(experiment.job.method).descent
    monkeypatch.setattr(CarriedMomentum, "descent", Method.descent)  # every client starts without momentum
    assert not same_state(once, go(again()))
    monkeypatch.setattr(CarriedMomentum, "descent", descent)
    store = RunFolder.create(tmp_path / "run", experiment.run, {})
    next(train(again(), store))
    list(train(again(), store, resuming=True))
    saved = store.resume()
    assert saved is not None
    assert server_to_bytes(saved[0]) == server_to_bytes(once[0])


def test_every_method_is_under_the_laws() -> None:
    released = {name for name, entry in METHODS.items() if issubclass(entry.method, CarriedMomentum)}
    assert released == {f"{method}-released" for method in RELEASED}
    assert {method for method, _ in combinations()} == METHODS.keys() - released
    assert settings("fedavg", "lora").tuner.options["dropout"] > 0  # a tuner that draws numbers is among them
