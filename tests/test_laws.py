"""The laws that every method obeys with every tuner it allows, on a tiny random CLIP."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest
import torch

from fedtailor.base.keys import flat
from fedtailor.base.rng import generator
from fedtailor.client.codec import client_to_bytes
from fedtailor.client.job import ClientState, Task, theta_of
from fedtailor.client.step import LazyBalance, StepTrace, client_step, labelled_data
from fedtailor.clip.load import digest
from fedtailor.core.method import Method
from fedtailor.core.optim import optimise
from fedtailor.core.types import LOCAL, Params, Pass, Reply, Server
from fedtailor.methods import METHODS
from fedtailor.methods.released.relay import CarriedMomentum
from fedtailor.runs.execute import train
from fedtailor.runs.folder import RunFolder
from fedtailor.runs.server_bytes import server_to_bytes
from fedtailor.simulation.build import Experiment
from fedtailor.simulation.engine import Engine, make_engine
from fedtailor.simulation.local import LocalEngine
from fedtailor.simulation.loop import run_round
from posted import reply_to_bytes, task_to_bytes
from world import combinations, settings, under_law, world

TRAINED = [(m, t) for m, t in combinations() if METHODS[m].method.trains]
NEUTRAL = [(m, t) for m, t in TRAINED if METHODS[m].method.neutral]
# The laws of one combination are tested one after the other, and share its plain run.
every = pytest.mark.parametrize("plain", under_law(combinations()), indirect=True, scope="module")
trained = pytest.mark.parametrize("plain", under_law(TRAINED), indirect=True, scope="module")
WITHOUT_HOLDOUT = {"capt": {"method.bandit": False}}
State = tuple[Server, dict[int, ClientState]]


def equal(a: Params, b: Params) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[n], b[n]) for n in a)


class Recording(LocalEngine):
    """Keeps every step, and what went into it as bytes from before it."""

    def __init__(self, experiment: Experiment) -> None:
        super().__init__(experiment.job, experiment.client_data)
        self.steps: list[StepTrace] = []
        self.given: list[tuple[bytes, bytes]] = []

    def step(self, pass_: Pass, k: int, task: Task) -> Reply:
        before = self.clients[k]
        self.given.append((task_to_bytes(task), client_to_bytes(before)))
        reply = super().step(pass_, k, task)
        self.steps.append(StepTrace(k, task, reply, before, self.clients[k]))
        return reply


def go(experiment: Experiment, engine: Engine | None = None) -> State:
    """All rounds of an experiment, without tests or files."""
    engine = engine or make_engine(experiment)
    server = experiment.job.first_server()
    while server.round < experiment.rounds:
        server, _ = run_round(experiment, server, engine)
    return server, engine.clients


@dataclass(frozen=True)
class Plain:
    """A plain run, which several laws look at."""

    method: str
    tuner: str
    experiment: Experiment
    engine: Recording
    folder: RunFolder

    @property
    def state(self) -> State:
        saved = self.folder.resume()
        assert saved is not None
        return saved[0], self.engine.clients

    def world(self, **more: Any) -> Experiment:
        """The same again, or with other settings."""
        return world(self.method, self.tuner, **more)


@pytest.fixture(scope="module")
def plain(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plain]:
    experiment = world(*request.param, every=2)
    engine = Recording(experiment)
    folder = RunFolder.create(tmp_path_factory.mktemp("plain") / "run", experiment.run, {})
    list(train(experiment, folder, make=lambda *_: engine))
    yield Plain(*request.param, experiment, engine, folder)
    folder.close()


@pytest.fixture(scope="module")
def single(plain: Plain) -> tuple[Experiment, Recording, Server]:
    """Two rounds with a single client."""
    experiment = plain.world(clients=1, fraction=1.0, rounds=2, batch=12)
    engine = Recording(experiment)
    return experiment, engine, go(experiment, engine)[0]


def reversing(method: Method) -> Method:
    """The same method, naming its cohorts backwards."""

    class Backwards(type(method)):  # type: ignore[misc]
        def cohort(self, *given: Any) -> list[int]:
            return super().cohort(*given)[::-1]

    return Backwards(**dict(method))


def same_state(a: State, b: State) -> bool:
    clients = all(equal(a[1][k].local, b[1][k].local) and equal(a[1][k].memory, b[1][k].memory) for k in a[1])
    return a[1].keys() == b[1].keys() and clients and server_to_bytes(a[0]) == server_to_bytes(b[0])


@trained
def test_local_never_goes_up(plain: Plain) -> None:
    """No reply that leaves a client names a LOCAL parameter or carries what was to be kept."""
    local = {name for name, scope in plain.experiment.job.scopes.items() if scope == LOCAL}
    replies = [step.reply for step in plain.engine.steps]
    assert replies
    assert all(not local & reply.params.keys() and not reply.keep for reply in replies)
    assert not [stat for reply in replies for stat in reply.stats if any(name in stat for name in local)]


@trained
def test_something_is_learned(plain: Plain) -> None:
    """A law of its own kind: a method that changes nothing would pass all the others."""
    server, clients = plain.state
    job = plain.experiment.job
    if server.params:
        assert not equal(server.params, job.first_server().params)
    else:  # nothing is shared: everything is the clients' own
        assert all(not equal(client.local, job.start) for client in clients.values())


@trained
@pytest.mark.parametrize("engine", ["posted"])
def test_same_bits_on_every_engine_and_with_a_permuted_cohort(plain: Plain, engine: str) -> None:
    """One run for both, and for the same seed: states are equal only if none of the three matters."""
    experiment = plain.world(engine=engine)
    job = replace(experiment.job, method=reversing(experiment.job.method))
    assert same_state(plain.state, go(replace(experiment, job=job)))


@trained
def test_another_seed_other_bits(plain: Plain) -> None:
    experiment = plain.world(seed=4)
    engine = Recording(experiment)
    run_round(experiment, experiment.job.first_server(), engine)

    def first_round(engine: Recording) -> list[tuple[bytes, bytes]]:
        steps = [step for step in engine.steps if step.task.round == 0]
        return [(reply_to_bytes(step.reply), client_to_bytes(step.after)) for step in steps]

    assert not set(first_round(engine)) & set(first_round(plain.engine))


@pytest.mark.parametrize("plain", under_law(NEUTRAL), indirect=True)
def test_neutral_values_give_fedavg(plain: Plain) -> None:
    """Bit for bit, whatever a method calls its shared branch and whatever its server remembers besides."""
    run, method = plain.experiment.run, METHODS[plain.method].method
    same = {f"tuner.{key}": value for key, value in flat(run.tuner.options).items()}
    same |= {f"local.{key}": value for key, value in run.local.model_dump(exclude={"betas"}).items()}
    neutral = {f"method.{key}": value for key, value in method.neutral.items()}
    labels = {f"labels.{key}": value for key, value in {"name": run.labels.name, **run.labels.options}.items()}
    who = {"fraction": 1.0 if method.everyone_first else run.fraction}
    fedavg = shared(go(world("fedavg", plain.tuner, **same, **labels, **who)))
    assert equal(shared(go(plain.world(**neutral, **who))), fedavg)
    assert not equal(shared(go(plain.world(**who)) if method.everyone_first else plain.state), fedavg)


def shared(state: State) -> Params:
    return {name.removeprefix("global."): value for name, value in state[0].params.items()}


@trained
def test_stop_and_resume_equals_straight_through(plain: Plain, tmp_path: Path) -> None:
    def rows(folder: RunFolder) -> list[dict[str, Any]]:
        return [{k: v for k, v in r.items() if k not in {"seconds", "peak_rss_mb"}} for r in folder.rounds()]

    broken = RunFolder.create(tmp_path / "broken", plain.experiment.run, {})
    next(train(plain.experiment, broken))  # one round, then the process is gone
    list(train(plain.world(every=2), broken, resuming=True))
    assert rows(plain.folder) == rows(broken)
    assert len(rows(broken)) == plain.experiment.rounds
    saved = broken.resume()
    assert saved is not None
    assert server_to_bytes(saved[0]) == server_to_bytes(plain.state[0])


@every
def test_clip_is_unchanged(plain: Plain) -> None:
    clip = plain.experiment.job.model.clip
    assert digest(clip) == plain.experiment.weights
    assert not any(value.requires_grad for value in clip.parameters())


@trained
def test_one_client_is_central_training(single: tuple[Experiment, Recording, Server]) -> None:
    """With a single client a round is that client's descent, and nothing the server does changes it."""
    experiment, engine, server = single
    reached: Params = {}
    server_has = bool(experiment.job.first_server().params)
    for step in engine.steps:
        assert all(torch.equal(step.task.params[n], reached[n]) for n in reached if n in step.task.params)
        reached.update(step.reply.params if server_has else step.after.local)
    assert reached
    averaged = {
        n: v for n, v in server.params.items() if not any(fnmatchcase(n, p) for p in experiment.job.method.made)
    }
    assert equal({n: reached[n] for n in averaged}, averaged)


@trained
def test_a_pass_is_the_descent_of_its_gradient(plain: Plain, single: tuple[Experiment, Recording, Server]) -> None:
    """The first pass that trains ends where plain SGD along method.gradient ends, over the same batches."""
    experiment, engine, _ = single
    if plain.method in WITHOUT_HOLDOUT:
        experiment = plain.world(clients=1, fraction=1.0, rounds=1, batch=12, **WITHOUT_HOLDOUT[plain.method])
        engine = Recording(experiment)
        go(experiment, engine)
    job = experiment.job
    step = next(step for step in engine.steps if step.reply.params or not job.first_server().params)
    task, client, reply = step.task, step.before, step.reply
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
    sent = reply.params or step.after.local
    assert equal({n: end[n] for n in sent}, sent)


@trained
def test_passes_are_pure(plain: Plain) -> None:
    """What went into a step is as it was; a step of the first round or a closing one, made again, gives the same."""
    experiment, steps = plain.experiment, plain.engine.steps
    assert plain.engine.given == [(task_to_bytes(step.task), client_to_bytes(step.before)) for step in steps]
    for step in steps:
        if 0 < step.task.round < experiment.run.rounds:
            continue
        pass_, data = experiment.job.find_pass(step.task.pass_name), experiment.client_data[step.client]
        again, kept = client_step(experiment.job, step.client, pass_, step.task, step.before, data)
        assert equal(again.params, step.reply.params)
        assert equal(again.stats, step.reply.stats)
        assert equal(kept.local, step.after.local)
        assert equal(kept.memory, step.after.memory)


@every
def test_predictions_are_finite_and_follow_their_images(plain: Plain) -> None:
    experiment, (server, clients) = plain.experiment, plain.state
    theta = {**experiment.job.start, **server.params, **clients.get(0, ClientState()).local}
    x = experiment.tests.features.fetch(experiment.tests.everything)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    for predict in (experiment.job.method.predict, experiment.job.method.predict_shared):
        with torch.no_grad():
            logits = predict(experiment.job.model, theta, x)
            turned = predict(experiment.job.model, theta, x[order])
        assert logits.shape == (len(x), experiment.job.model.classes)
        assert torch.isfinite(logits).all()
        torch.testing.assert_close(turned, logits[order], atol=1e-4, rtol=1e-4)


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

    experiment = again()
    engine = Recording(experiment)
    once, seen = go(experiment, engine), [step.reply for step in engine.steps]
    local = [name for name, scope in experiment.job.scopes.items() if scope == LOCAL]
    assert any(stat.startswith("velocity.") for reply in seen for stat in reply.stats)
    assert not [stat for reply in seen for stat in reply.stats if any(name in stat for name in local)]
    assert same_state(once, go(again(engine="posted")))
    update = type(experiment.job.method).local_update
    monkeypatch.setattr(CarriedMomentum, "local_update", Method.local_update)  # every client starts without momentum
    assert not same_state(once, go(again()))
    monkeypatch.setattr(CarriedMomentum, "local_update", update)
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
