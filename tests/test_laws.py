"""The laws that every method obeys with every tuner it allows, on a tiny random CLIP."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from fedtailor.clip.load import digest
from fedtailor.core import LOCAL, Method, Params, Reply, Server
from fedtailor.descend import descend, gradient_of
from fedtailor.engines import ENGINES
from fedtailor.engines.local import LocalEngine
from fedtailor.methods import METHODS
from fedtailor.rng import generator
from fedtailor.setup import Setup
from fedtailor.store import Store, server_to_bytes
from fedtailor.train import advance, train
from fedtailor.visit import Client, Task, visit
from world import CLIENTS, combinations, settings, world

every = pytest.mark.parametrize(("method", "tuner"), combinations())
TRAINED = [(m, t) for m, t in combinations() if METHODS[m].method.trains]
trained = pytest.mark.parametrize(("method", "tuner"), TRAINED)


def equal(a: Params, b: Params) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[n], b[n]) for n in a)


def go(setup: Setup, engine: LocalEngine | None = None, backwards: bool = False) -> tuple[Server, dict[int, Client]]:
    """All rounds of a setup, without tests or files."""
    if backwards:
        setup = replace(setup, job=replace(setup.job, method=reversing(setup.job.method)))
    engine = engine or setup.engine()
    server = setup.job.first_server()
    while server.round < setup.rounds:
        server, _ = advance(setup, server, engine)
    return server, engine.clients


def reversing(method: Method) -> Method:
    """The same method, naming its cohorts backwards."""

    class Backwards(type(method)):  # type: ignore[misc]
        def cohort(self, *given: Any) -> list[int]:
            return super().cohort(*given)[::-1]

    return Backwards(**dict(method))


def same_state(a: tuple[Server, dict[int, Client]], b: tuple[Server, dict[int, Client]]) -> bool:
    clients = all(equal(a[1][k].local, b[1][k].local) and equal(a[1][k].memory, b[1][k].memory) for k in range(CLIENTS))
    return clients and server_to_bytes(a[0]) == server_to_bytes(b[0])


@trained
def test_local_never_goes_up(method: str, tuner: str) -> None:
    """No reply that leaves a client names a LOCAL parameter or carries what was to be kept."""
    setup = world(method, tuner)
    seen: list[Reply] = []

    class Listening(LocalEngine):
        def call(self, k: int, task: Task) -> Reply:
            seen.append(super().call(k, task))
            return seen[-1]

    go(setup, Listening(setup.job, setup.shelves))
    local = {name for name, scope in setup.job.scopes.items() if scope == LOCAL}
    assert seen
    assert all(not local & reply.params.keys() and not reply.keep for reply in seen)


@trained
def test_something_is_learned(method: str, tuner: str) -> None:
    """A law of its own kind: a method that changes nothing would pass all the others."""
    setup = world(method, tuner)
    server, _ = go(setup)
    assert not equal(server.params, setup.job.first_server().params)


@trained
def test_same_seed_or_permuted_cohort_same_bits(method: str, tuner: str) -> None:
    once = go(world(method, tuner))
    assert same_state(once, go(world(method, tuner)))
    assert same_state(once, go(world(method, tuner), backwards=True))
    other = go(world(method, tuner, seed=4))
    assert not same_state(once, other)


@pytest.mark.parametrize(("method", "tuner"), [(m, t) for m, t in TRAINED if METHODS[m].method.neutral])
def test_neutral_values_give_fedavg(method: str, tuner: str) -> None:
    neutral = {f"method.{key}": value for key, value in METHODS[method].method.neutral.items()}
    assert same_state(go(world(method, tuner, **neutral)), go(world("fedavg", tuner)))
    assert not same_state(go(world(method, tuner)), go(world("fedavg", tuner)))


@trained
def test_stop_and_resume_equals_straight_through(method: str, tuner: str, tmp_path: Path) -> None:
    setup = world(method, tuner)

    def rows(store: Store) -> list[dict[str, Any]]:
        return [{k: v for k, v in r.items() if k not in {"seconds", "peak_rss_mb"}} for r in store.rounds()]

    straight = Store.create(tmp_path / "straight", setup.run, {})
    list(train(setup, straight))
    broken = Store.create(tmp_path / "broken", setup.run, {})
    next(train(setup, broken))  # one round, then the process is gone
    list(train(world(method, tuner), broken, resume=True))
    assert rows(straight) == rows(broken)
    assert len(rows(straight)) == 3
    saved, saved_too = straight.resume(), broken.resume()
    assert saved is not None
    assert saved_too is not None
    assert server_to_bytes(saved[0]) == server_to_bytes(saved_too[0])


@every
def test_clip_is_unchanged(method: str, tuner: str) -> None:
    setup = world(method, tuner)
    list(train(setup))
    assert digest(setup.job.model.clip) == setup.weights
    assert not any(value.requires_grad for value in setup.job.model.clip.parameters())


@trained
def test_one_client_is_central_training(method: str, tuner: str) -> None:
    """With a single client a round is that client's descent, and nothing the server does changes it."""
    setup = world(method, tuner, clients=1, fraction=1.0, rounds=2)
    server, _ = go(setup)
    job, local = setup.job, setup.job.method.local
    theta = job.start
    for t in range(2):
        start = theta

        def loss(now: Params, batch: Any, start: Params = start) -> torch.Tensor:
            return job.method.loss(job.model, now, batch, start)

        rng = generator(job.seed, "round", t, "client", 0, "train")
        theta = descend(gradient_of(loss), theta, setup.shelves[0], local, t, rng)
    assert equal({n: theta[n] for n in server.params}, server.params)


@trained
def test_passes_are_pure(method: str, tuner: str) -> None:
    """The same visit twice gives the same, and what went in is as it was."""
    setup = world(method, tuner)
    job = setup.job
    task = Task("train", 1, job.first_server().params)
    before = {n: v.clone() for n, v in task.params.items()}
    first, kept = visit(job, 2, task, Client(), setup.shelves[2])
    second, kept_too = visit(job, 2, task, Client(), setup.shelves[2])
    assert equal(first.params, second.params)
    assert equal(first.stats, second.stats)
    assert equal(kept.local, kept_too.local)
    assert equal(kept.memory, kept_too.memory)
    assert equal(before, task.params)


@every
def test_predictions_are_finite_and_follow_their_images(method: str, tuner: str) -> None:
    setup = world(method, tuner)
    server, _ = go(setup) if setup.job.method.trains else (setup.job.first_server(), {})
    theta = {**setup.job.start, **server.params}
    x = setup.tests.pool.fetch(setup.tests.everything)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    for predict in (setup.job.method.predict, setup.job.method.predict_shared):
        with torch.no_grad():
            logits = predict(setup.job.model, theta, x)
            turned = predict(setup.job.model, theta, x[order])
        assert logits.shape == (len(x), setup.job.model.classes)
        assert torch.isfinite(logits).all()
        torch.testing.assert_close(turned, logits[order], atol=1e-4, rtol=1e-4)


@trained
@pytest.mark.parametrize("engine", [name for name in ENGINES if name != "local"])
def test_engines_agree(method: str, tuner: str, engine: str) -> None:
    assert same_state(go(world(method, tuner, engine=engine)), go(world(method, tuner)))


def test_every_method_is_under_the_laws() -> None:
    assert {method for method, _ in combinations()} == set(METHODS)
    assert settings("fedavg", "lora").tuner.options["dropout"] > 0  # a tuner that draws numbers is among them
