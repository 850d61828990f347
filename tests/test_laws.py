"""The laws that every method obeys with every tuner it allows, on a tiny random CLIP."""

from __future__ import annotations

from dataclasses import replace
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from fedtailor.clip.load import digest
from fedtailor.config import flat
from fedtailor.core import LOCAL, Method, Params, Reply, Server
from fedtailor.descend import descend
from fedtailor.engines import ENGINES
from fedtailor.engines.local import LocalEngine
from fedtailor.methods import METHODS
from fedtailor.rng import generator
from fedtailor.setup import Setup
from fedtailor.store import Store, server_to_bytes
from fedtailor.train import advance, train
from fedtailor.visit import Client, Hold, Task, dressed, theta_of, visit
from fedtailor.wire import client_to_bytes, task_to_bytes
from world import combinations, settings, under_law, world

every = pytest.mark.parametrize(("method", "tuner"), under_law(combinations()))
TRAINED = [(m, t) for m, t in combinations() if METHODS[m].method.trains]
trained = pytest.mark.parametrize(("method", "tuner"), under_law(TRAINED))
WITHOUT_HOLDOUT = {"capt": {"method.bandit": False}}


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


@cache
def straight(method: str, tuner: str) -> tuple[Setup, Server, dict[int, Client]]:
    """One plain run of each combination, which several laws look at."""
    setup = world(method, tuner)
    return setup, *(go(setup) if setup.job.method.trains else (setup.job.first_server(), {}))


def reversing(method: Method) -> Method:
    """The same method, naming its cohorts backwards."""

    class Backwards(type(method)):  # type: ignore[misc]
        def cohort(self, *given: Any) -> list[int]:
            return super().cohort(*given)[::-1]

    return Backwards(**dict(method))


def same_state(a: tuple[Server, dict[int, Client]], b: tuple[Server, dict[int, Client]]) -> bool:
    clients = all(equal(a[1][k].local, b[1][k].local) and equal(a[1][k].memory, b[1][k].memory) for k in a[1])
    return a[1].keys() == b[1].keys() and clients and server_to_bytes(a[0]) == server_to_bytes(b[0])


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
    assert not [stat for reply in seen for stat in reply.stats if any(name in stat for name in local)]


@trained
def test_something_is_learned(method: str, tuner: str) -> None:
    """A law of its own kind: a method that changes nothing would pass all the others."""
    setup, server, clients = straight(method, tuner)
    if server.params:
        assert not equal(server.params, setup.job.first_server().params)
    else:  # nothing is shared: everything is the clients' own
        assert all(not equal(client.local, setup.job.start) for client in clients.values())


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


def shared(state: tuple[Server, dict[int, Client]]) -> Params:
    return {name.removeprefix("global."): value for name, value in state[0].params.items()}


@trained
def test_stop_and_resume_equals_straight_through(method: str, tuner: str, tmp_path: Path) -> None:
    setup = world(method, tuner, every=2)

    def rows(store: Store) -> list[dict[str, Any]]:
        return [{k: v for k, v in r.items() if k not in {"seconds", "peak_rss_mb"}} for r in store.rounds()]

    straight = Store.create(tmp_path / "straight", setup.run, {})
    list(train(setup, straight))
    broken = Store.create(tmp_path / "broken", setup.run, {})
    next(train(setup, broken))  # one round, then the process is gone
    list(train(world(method, tuner, every=2), broken, resume=True))
    assert rows(straight) == rows(broken)
    assert len(rows(straight)) == setup.rounds
    saved, saved_too = straight.resume(), broken.resume()
    assert saved is not None
    assert saved_too is not None
    assert server_to_bytes(saved[0]) == server_to_bytes(saved_too[0])


@every
def test_clip_is_unchanged(method: str, tuner: str) -> None:
    setup = straight(method, tuner)[0]
    assert digest(setup.job.model.clip) == setup.weights
    assert not any(value.requires_grad for value in setup.job.model.clip.parameters())


@trained
def test_one_client_is_central_training(method: str, tuner: str) -> None:
    """With a single client a round is that client's descent, and nothing the server does changes it."""
    setup = world(method, tuner, clients=1, fraction=1.0, rounds=2)
    reached: Params = {}
    server_has = bool(setup.job.first_server().params)

    class Following(LocalEngine):
        def call(self, k: int, task: Task) -> Reply:
            assert all(torch.equal(task.params[n], reached[n]) for n in reached if n in task.params)
            reply = super().call(k, task)
            reached.update(reply.params if server_has else self.clients[k].local)
            return reply

    server, _ = go(setup, Following(setup.job, setup.shelves))
    assert reached
    averaged = {n: v for n, v in server.params.items() if not any(fnmatchcase(n, p) for p in setup.job.method.made)}
    assert equal({n: reached[n] for n in averaged}, averaged)


@trained
def test_a_pass_is_the_descent_of_its_gradient(method: str, tuner: str) -> None:
    """The first pass that trains ends where plain SGD along method.gradient ends, over the same batches."""
    setup = world(method, tuner, clients=1, fraction=1.0, rounds=1, **WITHOUT_HOLDOUT.get(method, {}))
    tasks: list[tuple[Task, Client, Reply]] = []

    class Keeping(LocalEngine):
        def call(self, k: int, task: Task) -> Reply:
            client = self.clients[k]
            reply = super().call(k, task)
            tasks.append((task, client, reply))
            return reply

    engine = Keeping(setup.job, setup.shelves)
    go(setup, engine)
    job = setup.job
    task, client, reply = next((t, c, r) for t, c, r in tasks if r.params or not job.first_server().params)
    theta = theta_of(job, task.params, client)
    (who,) = job.method.everyone(1)
    rng = generator(job.seed, "round", 0, "client", who, task.pass_)
    data = dressed(job, who, client, setup.shelves[who])
    if job.rebalancer is not None:
        draws = generator(job.seed, "round", 0, "client", who, task.pass_, "rebalance")
        data = data.balanced(Hold(job.rebalancer, client, draws))
    gradient = job.method.gradient(job.model, {**theta, **task.inbox})
    end = descend(
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
    setup = world(method, tuner, rounds=1)
    calls: list[tuple[int, Task, Client]] = []

    class Keeping(LocalEngine):
        def call(self, k: int, task: Task) -> Reply:
            calls.append((k, task, self.clients[k]))
            return super().call(k, task)

    go(setup, Keeping(setup.job, setup.shelves))
    assert calls
    for k, task, client in calls:
        before = task_to_bytes(task), client_to_bytes(client)
        first, kept = visit(setup.job, k, task, client, setup.shelves[k])
        second, kept_too = visit(setup.job, k, task, client, setup.shelves[k])
        assert equal(first.params, second.params)
        assert equal(first.stats, second.stats)
        assert equal(kept.local, kept_too.local)
        assert equal(kept.memory, kept_too.memory)
        assert before == (task_to_bytes(task), client_to_bytes(client))


@every
def test_predictions_are_finite_and_follow_their_images(method: str, tuner: str) -> None:
    setup, server, clients = straight(method, tuner)
    theta = {**setup.job.start, **server.params, **clients.get(0, Client()).local}
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
    assert same_state(go(world(method, tuner, engine=engine)), straight(method, tuner)[1:])


RELEASED = {
    "capt": {"tuner": "coupled+class_prompt", "method.against": "text"},  # the tiny CLIP's widths differ
    "fedcopl": {"tuner": "text_prompt+visual_prompt"},
    "fedpurel": {"tuner": "text_prompt"},
}


@pytest.mark.parametrize("method", RELEASED)
def test_released_presets_obey_too(method: str, tmp_path: Path) -> None:
    """Clients one after the other, momentum carried on: still the same bits on every engine and after a stop."""
    tuner, more = RELEASED[method]["tuner"], {k: v for k, v in RELEASED[method].items() if k != "tuner"}

    def again(**settings: Any) -> Setup:
        return world(method, tuner, preset="released", **more, **settings)

    setup, seen = again(), list[Reply]()

    class Listening(LocalEngine):
        def call(self, k: int, task: Task) -> Reply:
            seen.append(super().call(k, task))
            return seen[-1]

    once = go(setup, Listening(setup.job, setup.shelves))
    local = [name for name, scope in setup.job.scopes.items() if scope == LOCAL]
    assert any(stat.startswith("velocity.") for reply in seen for stat in reply.stats)
    assert not [stat for reply in seen for stat in reply.stats if any(name in stat for name in local)]
    assert same_state(once, go(again(engine="posted")))
    assert not same_state(once, go(again(**{"local.carry": "no"})))
    store = Store.create(tmp_path / "run", setup.run, {})
    next(train(again(), store))
    list(train(again(), store, resume=True))
    saved = store.resume()
    assert saved is not None
    assert server_to_bytes(saved[0]) == server_to_bytes(once[0])


def test_every_method_is_under_the_laws() -> None:
    assert {method for method, _ in combinations()} == set(METHODS)
    assert settings("fedavg", "lora").tuner.options["dropout"] > 0  # a tuner that draws numbers is among them
