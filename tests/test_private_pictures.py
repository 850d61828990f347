"""Single pictures as the unit of privacy: steps by hand, what one picture can change, what it costs, who is refused."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import dp_accounting
import numpy as np
import pytest
import torch
from dp_accounting import rdp
from scipy.special import comb
from torch import Tensor

from fedtailor.base.errors import UserError
from fedtailor.base.rng import generator
from fedtailor.client.job import ClientState, Task
from fedtailor.client.step import client_step
from fedtailor.core.optim import LocalTraining
from fedtailor.core.statistics import Form, class_counts
from fedtailor.core.types import Batch, Params, Reply, Server
from fedtailor.methods import METHODS
from fedtailor.privacy.base import Leaving
from fedtailor.privacy.gaussian import Gaussian
from fedtailor.privacy.ledger import ORDERS, Ledger, of_releases, of_steps
from fedtailor.privacy.noise import Noise
from fedtailor.privacy.pictures import PictureSteps, rate_of, steps_of
from fedtailor.privacy.releases import Releases
from fedtailor.runs.execute import train
from fedtailor.runs.folder import RunFolder
from fedtailor.settings.run import make_run
from fedtailor.simulation.build import Experiment
from fedtailor.simulation.engine import make_engine
from fedtailor.simulation.loop import run_round
from fedtailor.tuners import TUNERS
from world import CLIENTS, world

PICTURE: dict[str, Any] = {"privacy": "gaussian", "privacy.unit": "picture"}


class Silent(Noise):
    """Draws pictures, and zeros for noise."""

    def __call__(self, like: Tensor) -> Tensor:
        return torch.zeros(like.shape, dtype=torch.float64)


class Given:
    """Pictures that are numbered; the gradient of each is known."""

    def __init__(self, gradients: Tensor) -> None:
        self.gradients = gradients

    def __len__(self) -> int:
        return len(self.gradients)

    def some(self, index: Tensor, rng: torch.Generator) -> Batch:
        return Batch(index, index, index, rng)

    def gradient(self, theta: Params, batch: Batch) -> Params:
        assert len(batch.index) == 1
        return {"w": self.gradients[batch.index[0]]}


def epoch(steps: PictureSteps, data: Any, size: int, drop_last: bool = True, seed: int = 0) -> list[Params]:
    theta = {"w": torch.zeros_like(data.gradients[0])}
    return list(steps(data.gradient, theta, data, size, drop_last, generator(seed)))


# --- the steps --------------------------------------------------------------------------------------------------------


def test_a_step_by_hand() -> None:
    """Gradients (3, 4) and (0.3, 0.4) are 5 and 0.5 long: clipped to C = 1, (0.6, 0.8) and (0.3, 0.4) are left. Their
    sum is divided by how many pictures a step has on average, 2. Abadi et al., Alg. 1"""
    data = Given(torch.tensor([[3.0, 4.0], [0.3, 0.4]]))
    (step,) = epoch(PictureSteps(1.0, 2.0, 2, Silent(b"key")), data, size=32)
    assert step["w"].tolist() == pytest.approx([0.45, 0.6])
    assert step["w"].dtype == torch.float32


def test_noise_by_hand() -> None:
    """σ C = 0.6 on the sum, of 8 pictures of which a step has 4 on average: 0.15 in each of two steps, and another."""
    first, second = epoch(PictureSteps(0.2, 3.0, 8, Noise(b"key")), Given(torch.zeros(8, 20_000)), size=4)
    assert float(first["w"].std()) == pytest.approx(0.15, rel=0.03)
    assert abs(float((first["w"] * second["w"]).mean())) < 0.15**2 * 0.03


def test_each_picture_is_drawn_by_itself() -> None:
    """With probability q = 4/16, from the secret stream and not from the run's seed, which the server knows."""
    data = Given(0.5 * torch.eye(16))

    def drawn(key: bytes, seed: int = 0) -> Tensor:
        steps = [epoch(PictureSteps(1.0, 0.0, 16, Noise(key + bytes([i]))), data, 4, seed=seed) for i in range(50)]
        return torch.stack([step["w"] for passes in steps for step in passes]) > 0

    found = drawn(b"key")
    assert found.shape == (200, 16)
    assert float(found.float().mean()) == pytest.approx(0.25, abs=0.03)
    assert float(found.float().mean(0).max()) < 0.4
    assert float(found.sum(1).float().var()) == pytest.approx(16 * 0.25 * 0.75, rel=0.25)  # binomial: not always 4
    assert torch.equal(found, drawn(b"key", seed=1))
    assert not torch.equal(found, drawn(b"other"))


def test_steps_of_an_epoch() -> None:
    """As many as there would be batches; a client with fewer pictures than a batch has all of them in each."""
    assert [steps_of(n, 4, True) for n in (0, 3, 4, 9)] == [0, 1, 1, 2]
    assert [steps_of(n, 4, False) for n in (0, 3, 4, 9)] == [0, 1, 1, 3]
    assert [rate_of(n, 4) for n in (0, 3, 4, 16)] == [0.0, 1.0, 1.0, 0.25]
    nobody, none = Given(torch.zeros(0, 2)), {"w": torch.zeros(2)}
    steps = PictureSteps(1.0, 1.0, 9, Noise(b"key"))
    assert list(steps(nobody.gradient, none, nobody, 4, True, generator(0))) == []  # type: ignore[arg-type]


# --- what one picture can change --------------------------------------------------------------------------------------


def test_one_picture_moves_the_sum_by_no_more_than_twice_c() -> None:
    """Replaced by another: by the difference of the two clipped gradients, and by nothing else."""
    job, data = (experiment := world(**PICTURE)).job, experiment.client_data[0]
    y, index = data.labels, torch.arange(len(data))
    theta = {n: v.clone().requires_grad_() for n, v in job.start.items()}
    follow = job.method.gradient(job.model, job.start)

    def total(order: Tensor) -> Tensor:
        some, steps = data.labelled(order, y[order]), PictureSteps(0.5, 0.0, len(order), Silent(b"key"))
        (step,) = steps(follow, theta, some, len(order), True, generator(7))
        return len(order) * torch.cat([value.flatten() for value in step.values()])

    other = index.clone()
    other[3] = 5
    before, after = total(index[3:4]), total(index[5:6])
    assert float(before.norm()) == pytest.approx(0.5, rel=1e-4)  # clipped
    assert 0.05 < float((before - after).norm()) <= 2 * 0.5
    torch.testing.assert_close(total(other) - total(index), after - before, atol=1e-5, rtol=1e-4)


def test_no_draw_of_a_picture_depends_on_the_others() -> None:
    """A picture that needs one random number in place of one that needs two: the others, dropout say, draw the same."""

    class Drawing(Given):
        def gradient(self, theta: Params, batch: Batch) -> Params:
            own = self.gradients[batch.index[0]]
            drawn = torch.randn(1 if own.any() else 2, generator=batch.rng)
            return {"w": own if own.any() else drawn}

    all_draw, one_less = torch.zeros(9, 2), torch.zeros(9, 2)
    one_less[4] = torch.tensor([3.0, 4.0])
    (a,), (b,) = (epoch(PictureSteps(0.1, 0.0, 9, Silent(b"key")), Drawing(it), 9) for it in (all_draw, one_less))
    drawn = 9 * (a["w"] - b["w"]) + torch.tensor([0.06, 0.08])  # what is left is its own, which was clipped too
    assert float(drawn.norm()) == pytest.approx(0.1, rel=1e-4)


TRAINED = [name for name, entry in METHODS.items() if entry.method.trains and name != "capt-released"]


def apart(experiment: Experiment, n: int = 4) -> tuple[Params, Params]:
    """The gradient of a batch, and the mean of its pictures', at parameters a step away from the first ones."""
    job, data = experiment.job, experiment.client_data[min(experiment.client_data)]
    start = {name: value.clone() for name, value in job.start.items()}
    given = {**start, "counts": torch.tensor([5, 1, 3, 2, 4])}  # CAPT's
    follow = job.method.gradient(job.model, given)
    rng = generator(1)
    names = [name for name in start if not name.startswith(("local.present", "retrained.", "rectified.", "etf."))]
    theta = {name: start[name] + 0.05 * torch.randn(start[name].shape, generator=rng) for name in names}
    theta = {name: value.requires_grad_() for name, value in theta.items()}
    index = torch.arange(0, 2 * n, 2)

    def at(index: Tensor) -> Params:
        return follow(theta, replace(data.some(index, generator(0)), rng=None))

    ones = [at(index[i : i + 1]) for i in range(n)]
    return at(index), {name: torch.stack([one[name] for one in ones]).mean(0) for name in ones[0]}


def same(a: Params, b: Params) -> bool:
    scale = max(float(value.abs().max()) for value in a.values())
    return a.keys() == b.keys() and all(torch.allclose(a[n], b[n], atol=1e-4 * scale, rtol=1e-3) for n in a)


ALL = [t for t in TUNERS if t not in ("none", "text_prompt")]
APART = [(name, METHODS[name].tuner) for name in TRAINED] + [("fedavg", tuner) for tuner in ALL]


@pytest.mark.parametrize(("method", "tuner"), APART, ids=str)
def test_methods_say_rightly_that_they_train_picture_by_picture(method: str, tuner: str) -> None:
    """The gradient of a batch is the mean of its pictures', in every method that is let through, with every tuner."""
    experiment = world(method, tuner, labels="given")
    if not experiment.job.method.mixing:
        assert same(*apart(experiment))


@pytest.mark.parametrize(
    ("method", "more"),
    [("capt", {}), ("fedclip", {"method.against": "captions"}), ("fedpurel", {}), ("fedavg", {"rebalance": "fedgrab"})],
)
def test_the_others_do_not(method: str, more: dict[str, Any]) -> None:
    experiment = world(method, METHODS[method].tuner, **more)
    if experiment.job.rebalancer is None:
        assert experiment.job.method.mixing
        assert not same(*apart(experiment))
    with pytest.raises(UserError, match=r"clips the gradient of each picture by itself, and"):
        world(method, METHODS[method].tuner, **more, **PICTURE)
    assert not world("capt", "coupled+class_prompt", **PICTURE, **{"method.mask": "sample"}).job.method.mixing


def test_who_is_refused() -> None:
    for method, why in {
        "capt": r"capt masks rows by the classes of a batch; take method.mask=sample",
        "scaffold": "scaffold would have its control variates clipped",
        "rucr": "rucr sends sums of its pictures' features",
        "creff": "creff sends the gradients of whole classes",
        "tailor": "take method.rho=0",
        "fedavg-released": "hands momentum on",
        "central": "everyone's pictures in one place",
        "fedcopl": "labels=copl labels one picture by others; take labels=zeroshot labels.refresh=0",
    }.items():
        with pytest.raises(UserError, match=why):
            make_run(method, PICTURE)
    with pytest.raises(UserError, match=r"hides pictures from the server too; take privacy.against=server"):
        make_run("promptfl", {**PICTURE, "privacy.against": "others"})
    with pytest.raises(UserError, match=r"labels=zeroshot with labels.refresh labels one picture by others"):
        make_run("promptfl", {**PICTURE, "labels": "zeroshot", "labels.refresh": 2})
    assert make_run("promptfl", {**PICTURE, "labels": "zeroshot"}).privacy.options["unit"] == "picture"
    assert make_run("zeroshot", PICTURE).privacy.name == "gaussian"


def leaving(**more: Any) -> Leaving:
    forms = {"n": class_counts(2), "m": class_counts(2), "s": Form(torch.zeros(1))}
    return Leaving({"w": torch.ones(2)}, {n: forms[n] for n in more.pop("sent", ())}, 1000, 4, Noise(b"key"), **more)


def test_nothing_leaves_that_was_reached_otherwise() -> None:
    """Whatever a method says of itself. What was not trained may go up as it came down."""
    hidden, w = Gaussian(unit="picture"), torch.tensor([2.0, 3.0])
    assert hidden(Reply({"w": w}, 9.0), leaving(reached={"w": w.clone()})).params["w"] is w
    assert hidden(Reply({"w": w}, 9.0), leaving(reached={"w": w.clone()})).weight == 9.0
    assert hidden(Reply({"w": torch.ones(2)}), leaving()).params["w"].tolist() == [1.0, 1.0]
    for reached in (None, {"w": w + 1e-6}, {"v": w}):
        with pytest.raises(UserError, match="w was not trained picture by picture"):
            hidden(Reply({"w": w}), leaving(reached=reached))
    with pytest.raises(UserError, match="s does not count pictures"):
        hidden(Reply({}, stats={"s": torch.ones(1)}), leaving(sent="s"))
    steps = hidden.steps(4, Noise(b"key"))
    assert steps is not None
    steps.arrived({})
    with pytest.raises(UserError, match="a pass trains once"):
        steps.arrived({})


def test_counts_have_noise_for_one_picture() -> None:
    """It adds 1 to each of two counts, √2 in all: σ √2, and no clipping."""
    counts = {name: torch.full((4000,), 500) for name in "nm"}
    forms = dict.fromkeys("nm", class_counts(4000))
    out = Gaussian(unit="picture", counts_noise=5.0, counts_clip=1.0)(
        Reply({}, stats=counts), replace(leaving(), forms=forms)
    )
    for value in out.stats.values():
        assert float(value.double().mean()) == pytest.approx(500, abs=1)
        assert float(value.double().std()) == pytest.approx(5 * math.sqrt(2), rel=0.05)


# --- the same request -------------------------------------------------------------------------------------------------


def test_the_same_request_gets_the_same_pictures_and_the_same_noise() -> None:
    experiment = world(**PICTURE, batch=2)
    job, data = experiment.job, experiment.client_data[1]
    task = Task("train", 0, job.first_server().params)

    def sent(secret: bytes, task: Task = task, who: int = 1) -> Tensor:
        return client_step(job, who, job.method.train, task, ClientState(), data, secret)[0].params["text.ctx"]

    assert torch.equal(sent(b"one"), sent(b"one"))
    again = [sent(b"one"), sent(b"two"), sent(b"one", replace(task, round=1)), sent(b"one", who=2)]
    assert len({value.numpy().tobytes() for value in again}) == 4


# --- what it costs ----------------------------------------------------------------------------------------------------


def by_hand(q: float, sigma: float, steps: int, delta: float) -> float:
    """Mironov et al. 2019: α-Rényi divergence of a step, for whole α, ln Σ_k C(α,k) (1−q)^(α−k) q^k e^(k(k−1)/2σ²) over
    α − 1; then Canonne, Kamath and Steinke 2020, ε = r + ln(1 − 1/α) − ln(δ α) / (α − 1)."""
    found = []
    for a in ORDERS[:63]:
        k = np.arange(a + 1)
        terms = np.log(comb(a, k)) + k * np.log(q) + k * (k - 1) / (2 * sigma**2)
        terms += np.where(k < a, (a - k) * np.log(max(1 - q, 1e-300)), 0.0)
        r = steps * np.logaddexp.reduce(terms) / (a - 1)
        found.append(r + math.log1p(-1 / a) - math.log(delta * a) / (a - 1))
    return min(found)


def test_epsilon_of_steps() -> None:
    """By hand, and by a call of dp-accounting as anybody would make it, whose fractional orders give a little less."""
    for q, sigma, steps in ((0.3, 2.0, 8), (0.1, 1.0, 200), (1.0, 4.0, 20)):
        told = of_steps(sigma, q, steps, 1e-5)
        assert told == pytest.approx(by_hand(q, sigma, steps, 1e-5), rel=1e-6)
        accountant = rdp.RdpAccountant(ORDERS)
        event = dp_accounting.PoissonSampledDpEvent(q, dp_accounting.GaussianDpEvent(sigma))
        accountant.compose(dp_accounting.SelfComposedDpEvent(event, steps))
        assert told == pytest.approx(accountant.get_epsilon(1e-5))
    assert of_steps(1.0, 1.0, 0, 1e-5) == 0.0
    assert of_steps(0.0, 1.0, 1, 1e-5) == math.inf
    assert of_steps(4.0, 1.0, 20, 1e-5) == pytest.approx(of_releases(4.0, 20, 1e-5, 1.0), rel=0.1)  # all of them


def test_the_worst_client_is_told() -> None:
    """Clients of 8, 40 and 40 pictures, in batches of 8, two epochs: 2 steps of all pictures in a pass, or 10 of each
    fifth. Client 0 trained once, client 1 twice, client 2 never; client 3 never said how many it has."""
    local = LocalTraining(batch=8, epochs=2)
    state = {
        "privacy.clients.updates": torch.tensor([1, 2, 0, 5]),
        "privacy.clients.counts": torch.tensor([3, 1, 0, 0]),
    }
    server, sizes = Server(1, {}, clients=4, state=state), {0: 8, 1: 40, 2: 40}
    privacy = Gaussian(unit="picture", noise=3.0, counts_noise=4.0)
    ledger = Ledger.of(privacy, server, 3, Releases(), local, sizes)
    assert ledger is not None
    each = [by_hand(1.0, 3.0, 2, 1e-5), by_hand(0.2, 3.0, 20, 1e-5)]
    told = {"epsilon": max(each), "counts_epsilon": of_releases(4.0, 3, 1e-5, 1.0), "unit": "picture", "delta": 1e-5}
    assert ledger.row() == pytest.approx(told)
    fewer = Ledger.of(privacy, ledger.kept(server), 3, Releases(), local, {0: 60, 1: 24})  # who comes back with more
    assert fewer is not None
    assert fewer.pictures.tolist() == [8, 24, 40, 0]


def budgeted(passes: int, **more: Any) -> Experiment:
    """Every client has 11 or 12 pictures, in batches of 4: three steps of a third, or two of 4/11."""
    local = LocalTraining(batch=4)
    worst = max(of_steps(8.0, rate_of(n, 4), passes * steps_of(n, 4, local.drop_last), 1e-5) for n in (11, 12))
    budget = {"privacy.noise": 8.0, "privacy.epsilon": worst * 1.001}
    return world(fraction=1.0, every=10, **PICTURE, **budget, **{"rounds": 6, **more})


def test_a_run_ends_before_it_exceeds_its_budget(tmp_path: Path) -> None:
    """There is a budget for two rounds; the run is killed after the first, and resumed."""
    experiment = budgeted(2)
    assert {len(data) for data in experiment.client_data.values()} <= {11, 12}
    store = RunFolder.create(tmp_path / "run", experiment.run, {})
    first = next(iter(train(experiment, store)))
    (second,) = train(budgeted(2), store, resuming=True)
    store.close()
    told = [record.privacy or {} for record in (first, second)]
    limit = experiment.run.privacy.options["epsilon"]
    assert told[0]["epsilon"] < told[1]["epsilon"] == pytest.approx(limit / 1.001)
    assert [it["spent"] for it in told] == [False, True]
    assert second.shared is not None


def test_no_noise_no_bound() -> None:
    (record,) = train(world(rounds=1, **PICTURE, **{"privacy.noise": 0.0}))
    assert (record.privacy or {})["epsilon"] is None


@pytest.mark.parametrize(("method", "more"), [("capt", {"method.mask": "sample"}), ("fedsa-lora", {})])
def test_methods_train_with_it(method: str, more: dict[str, Any]) -> None:
    experiment = world(method, METHODS[method].tuner, rounds=1, **PICTURE, **{"privacy.noise": 0.5, **more})
    engine, server = make_engine(experiment), experiment.job.first_server()
    after, _ = run_round(experiment, server, engine)
    assert all(torch.isfinite(value).all() for value in after.params.values())
    assert any(not torch.equal(value, server.params[n]) for n, value in after.params.items())
    ledger = engine.ledger(after)
    assert ledger is not None
    assert ledger.pictures.tolist() == [len(experiment.client_data[k]) for k in range(CLIENTS)]
    assert ledger.epsilon("updates") > 0
    assert (ledger.epsilon("counts") > 0) == (method == "capt")
