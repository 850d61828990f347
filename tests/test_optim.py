"""Local optimisation, on one or two numbers, against formulas that can be followed by hand."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

from fedtailor.base.rng import generator
from fedtailor.client.data import ClientData
from fedtailor.client.features import CachedFeatures
from fedtailor.core.optim import LocalTraining, gradient_of, optimise
from fedtailor.core.types import Batch, Params
from fedtailor.methods.released.fedavg import ReleasedFedAvg
from torch_optimisers import torch_optimiser

GOLDEN = Path(__file__).parent / "golden"


class Steps:
    """So many batches an epoch, each with the target 0."""

    def __init__(self, steps: int) -> None:
        self.steps, self.asked = steps, list[tuple[int, bool]]()
        self.labels = torch.zeros(steps, dtype=torch.int64)

    def __len__(self) -> int:
        return self.steps

    def counts(self) -> Tensor:
        return torch.bincount(self.labels)

    def batches(self, size: int, drop_last: bool, rng: torch.Generator) -> Iterator[Batch]:
        self.asked.append((size, drop_last))
        for i in range(self.steps):
            yield Batch(torch.zeros(1), self.labels[i : i + 1], torch.tensor([i]), rng)


def bowl(theta: Params, _: Batch) -> Tensor:
    """w²/2, whose gradient is w."""
    return theta["w"].square().sum() / 2


def after(steps: int, **settings: object) -> float:
    """w after so many steps from 1, with lr 0.1 and plain SGD unless told otherwise."""
    local = LocalTraining.model_validate({"lr": 0.1, "momentum": 0.0, "weight_decay": 0.0, **settings})
    theta = {"w": torch.tensor([1.0], dtype=torch.float64)}
    return optimise(gradient_of(bowl), theta, Steps(steps), local, 0, generator(0))["w"].item()


def test_sgd_with_momentum_and_decay() -> None:
    """g = 1.1 w, v = 0.5 v + g, w −= 0.1 v.

    g 1.1, v 1.1, w 0.89 · g 0.979, v 0.55 + 0.979 = 1.529, w 0.7371 · g 0.81081, v 0.7645 + 0.81081, w 0.579569
    """
    found = [after(n, momentum=0.5, weight_decay=0.1) for n in (1, 2, 3)]
    assert found == pytest.approx([0.89, 0.7371, 0.579569], rel=1e-12)


def test_nesterov() -> None:
    """The step is 0.1 (g + 0.5 v): w −= 0.1 · (1.1 + 0.55) = 0.835, then g 0.9185, v 1.4685, w −= 0.165275."""
    found = [after(n, momentum=0.5, weight_decay=0.1, nesterov=True) for n in (1, 2)]
    assert found == pytest.approx([0.835, 0.669725], rel=1e-12)


def adam(steps: int, decay: float, apart: bool) -> float:
    """Kingma and Ba, Algorithm 1, with decay in the gradient (Adam) or apart from it (AdamW)."""
    w, m, v = 1.0, 0.0, 0.0
    for t in range(1, steps + 1):
        g = w if apart else w + decay * w
        w = w - 0.1 * decay * w if apart else w
        m, v = 0.9 * m + 0.1 * g, 0.99 * v + 0.01 * g * g
        w -= 0.1 * (m / (1 - 0.9**t)) / (math.sqrt(v / (1 - 0.99**t)) + 1e-3)
    return w


@pytest.mark.parametrize("optimiser", ["adam", "adamw"])
def test_adam_and_adamw(optimiser: str) -> None:
    """Three steps as in the papers, with a decay and an eps large enough to show."""
    settings = {"optimiser": optimiser, "weight_decay": 0.2, "betas": (0.9, 0.99), "eps": 1e-3}
    found = [after(n, **settings) for n in (1, 2, 3)]
    assert found == pytest.approx([adam(n, 0.2, optimiser == "adamw") for n in (1, 2, 3)], rel=1e-9)
    assert adam(3, 0.2, True) != pytest.approx(adam(3, 0.2, False), rel=1e-3)


@pytest.mark.parametrize("clip", [0.0, 0.5])
@pytest.mark.parametrize("optimiser", ["sgd", "adam", "adamw"])
def test_equal_to_torchs_own_to_the_bit(optimiser: str, clip: float) -> None:
    """Two tensors, one of which has no gradient in some steps, over several steps and rates."""
    settings = {
        "optimiser": optimiser,
        "lr": 0.1,
        "weight_decay": 0.01,
        "clip": clip,
        "schedule": "cosine",
        "epochs": 2,
    }
    local = LocalTraining.model_validate(settings)
    rng = generator(3)
    start = {"w": torch.randn(4, 3, generator=rng), "b": torch.randn(3, generator=rng)}

    def loss(theta: Params, batch: Batch) -> Tensor:
        x = torch.full((2, 4), float(batch.index[0] + 1))
        return ((x @ theta["w"] + (theta["b"] if batch.index[0] % 2 else 0)).tanh() - 0.3).square().sum()

    found = optimise(gradient_of(loss), start, Steps(3), local, 0, generator(0))
    now = {name: value.clone().requires_grad_() for name, value in start.items()}
    reference = torch_optimiser(local, list(now.values()))
    for epoch in range(2):
        reference.param_groups[0]["lr"] = local.rate(0, epoch)
        for batch in Steps(3).batches(1, False, generator(0)):
            reference.zero_grad()
            loss(now, batch).backward()
            if clip:
                torch.nn.utils.clip_grad_norm_(now.values(), clip)
            reference.step()
    for name, value in now.items():
        torch.testing.assert_close(found[name], value.detach(), rtol=0, atol=1e-6 if clip else 0)


@pytest.mark.parametrize("optimiser", ["sgd", "adam", "adamw"])
def test_optimiser_is_fresh_each_call(optimiser: str) -> None:
    """Nothing is carried from one round to the next: two calls of one step are not one call of two."""
    local = LocalTraining(lr=0.1, optimiser=optimiser, momentum=0.5, weight_decay=0.1, betas=(0.5, 0.9))
    theta = {"w": torch.tensor([1.0, 3.0], dtype=torch.float64)}
    once = optimise(gradient_of(bowl), theta, Steps(1), local, 0, generator(0))
    twice = optimise(gradient_of(bowl), once, Steps(1), local, 1, generator(0))
    again = optimise(gradient_of(bowl), once, Steps(1), local, 7, generator(0))
    straight = optimise(gradient_of(bowl), theta, Steps(2), local, 0, generator(0))
    assert torch.equal(twice["w"], again["w"])
    assert not torch.allclose(twice["w"], straight["w"])


def test_rates_within_a_round() -> None:
    """Cosine over 4 epochs: 0.5 (1 + cos 0, π/4, π/2, 3π/4); step 2: halved after two epochs; both again each round."""
    cosine = LocalTraining(lr=1.0, epochs=4, schedule="cosine")
    step = LocalTraining(lr=1.0, epochs=4, schedule="step", step=2, gamma=0.5)
    root = math.sqrt(0.5)
    for round_ in (0, 3):
        assert [cosine.rate(round_, e) for e in range(4)] == pytest.approx([1, (1 + root) / 2, 0.5, (1 - root) / 2])
        assert [step.rate(round_, e) for e in range(4)] == [1, 1, 0.5, 0.5]
        assert [LocalTraining(lr=0.3, epochs=4).rate(round_, e) for e in range(4)] == [0.3] * 4


def test_step_schedule_across_rounds() -> None:
    """span=6 with 2 epochs a round: epochs 0…5 in rounds 0–2, a drop every 3, from the beginning in round 3."""
    local = LocalTraining(lr=1.0, epochs=2, schedule="step", step=3, gamma=0.1, span=6)
    rates = [local.rate(r, e) for r in range(4) for e in range(2)]
    assert rates == pytest.approx([1, 1, 1, 0.1, 0.1, 0.1, 1, 1])


def test_rates_of_fedcopl() -> None:
    """FedCoPL's own scheduler over 10 epochs × 5 rounds, and a new cycle after that."""
    golden = json.loads((GOLDEN / "fedcopl_lr.json").read_text())["lr"]
    local = LocalTraining(lr=0.1, epochs=10, schedule="cosine", span=50)
    for first in (0, 5):
        rates = [local.rate(first + r, e) for r in range(5) for e in range(10)]
        assert rates == pytest.approx(golden, rel=1e-6)


def test_optimise_uses_the_rate_of_its_round_and_epoch() -> None:
    """Round 1 of 2 epochs, span 4: rates 0.1 · 0.5 and 0.1 · (1 − √½)/2 = 0.0146447; w = 0.95 · 0.9853553."""
    local = LocalTraining(lr=0.1, epochs=2, momentum=0, weight_decay=0, schedule="cosine", span=4)
    theta = {"w": torch.tensor([1.0], dtype=torch.float64)}
    w = optimise(gradient_of(bowl), theta, Steps(1), local, 1, generator(0))["w"].item()
    assert w == pytest.approx(0.95 * (1 - 0.1 * (1 - math.sqrt(0.5)) / 2), rel=1e-12)


def test_clipping_is_by_the_whole_norm() -> None:
    """Gradients 3 and 4 have norm 5; cut to 1 they are 0.6 and 0.8. A limit above 5 changes nothing."""
    theta = {"a": torch.tensor([3.0]), "b": torch.tensor([4.0])}

    def both(now: Params, _: Batch) -> Tensor:
        return (now["a"].square() + now["b"].square()).sum() / 2

    def step(clip: float) -> list[float]:
        local = LocalTraining(lr=1.0, momentum=0, weight_decay=0, clip=clip)
        out = optimise(gradient_of(both), theta, Steps(1), local, 0, generator(0))
        return [(theta[n] - out[n]).item() for n in ("a", "b")]

    assert step(1.0) == pytest.approx([0.6, 0.8], abs=1e-5)
    assert step(6.0) == step(0.0) == [3.0, 4.0]


def test_fixed_and_start_are_left_alone() -> None:
    """A fixed parameter comes back as it was, theta itself is not written to, and the result has no gradient."""
    theta = {"w": torch.tensor([1.0]), "f": torch.tensor([2.0])}
    before = {n: v.clone() for n, v in theta.items()}

    def loss(now: Params, _: Batch) -> Tensor:
        return (now["w"] * now["f"]).sum()

    out = optimise(gradient_of(loss), theta, Steps(3), LocalTraining(lr=0.1), 0, generator(0), fixed={"f"})
    assert all(torch.equal(theta[n], before[n]) and not theta[n].requires_grad for n in theta)
    assert torch.equal(out["f"], before["f"])
    assert not torch.equal(out["w"], before["w"])
    assert list(out) == list(theta)
    assert not any(v.requires_grad for v in out.values())


def test_what_a_loss_does_not_reach_has_no_gradient() -> None:
    """An unused parameter is absent from the gradient, and not even decayed."""
    now = {"w": torch.tensor([2.0], requires_grad=True), "idle": torch.tensor([5.0], requires_grad=True)}
    batch = next(Steps(1).batches(1, False, generator(0)))
    assert list(gradient_of(bowl)(now, batch)) == ["w"]
    start = {n: v.detach() for n, v in now.items()}
    out = optimise(gradient_of(bowl), start, Steps(2), LocalTraining(lr=0.1, weight_decay=0.5), 0, generator(0))
    assert out["idle"].item() == 5.0
    assert out["w"].item() != 2.0


@pytest.mark.parametrize(
    ("samples", "drop_last", "sizes"),
    [(10, True, [4, 4]), (10, False, [4, 4, 2]), (3, True, [3]), (8, True, [4, 4]), (4, True, [4])],
)
def test_the_last_small_batch(samples: int, drop_last: bool, sizes: list[int]) -> None:
    """It is dropped where asked, unless it is the only one; optimise passes the wish on."""
    values = np.zeros((samples, 1), dtype=np.float32)
    data = ClientData(CachedFeatures(values), np.arange(samples), np.zeros(samples, dtype=np.int64), 1)
    seen: list[int] = []

    def gradient(now: Params, batch: Batch) -> Params:
        seen.append(len(batch.y))
        return {"w": torch.zeros(1)}

    local = LocalTraining(batch=4, drop_last=drop_last, epochs=2)
    optimise(gradient, {"w": torch.zeros(1)}, data, local, 0, generator(0))
    assert seen == sizes * 2


def test_every_epoch_has_its_own_order() -> None:
    """The generator runs on: two epochs meet the samples in different orders, and the same seed gives both again."""
    data = ClientData(
        CachedFeatures(np.zeros((32, 1), dtype=np.float32)), np.arange(32), np.zeros(32, dtype=np.int64), 1
    )

    def orders(seed: int) -> list[list[int]]:
        seen: list[list[int]] = []

        def gradient(now: Params, batch: Batch) -> Params:
            seen.append(batch.index.tolist())
            return {}

        optimise(gradient, {"w": torch.zeros(1)}, data, LocalTraining(batch=32, epochs=2), 0, generator(seed))
        return seen

    first, second = orders(1)
    assert first != second
    assert sorted(first) == sorted(second) == list(range(32))
    assert orders(1) == [first, second]
    assert orders(2)[0] != first


@pytest.mark.parametrize(
    "wrong",
    [
        {"lr": 0},
        {"lr": math.nan},
        {"lr": math.inf},
        {"batch": 0},
        {"epochs": 0},
        {"momentum": 1.0},
        {"nesterov": True, "momentum": 0.0},
        {"betas": (0.9, 1.0)},
        {"betas": (-0.1, 0.9)},
        {"eps": math.inf},
        {"optimiser": "sgdm"},
        {"warmup": 1},
    ],
)
def test_impossible_settings_are_refused(wrong: dict[str, object]) -> None:
    """What torch would only refuse in the first step, or never, is refused when it is said."""
    with pytest.raises(ValidationError):
        LocalTraining.model_validate(wrong)


def test_momentum_can_be_handed_on() -> None:
    """Two clients of two steps each, momentum handed on, move as one of four steps does; without it they do not."""
    local = LocalTraining(lr=0.1, momentum=0.5, weight_decay=0.0)
    theta, velocity = {"w": torch.tensor([1.0], dtype=torch.float64)}, dict[str, Tensor]()
    for _ in range(2):
        theta = optimise(gradient_of(bowl), theta, Steps(2), local, 0, generator(0), velocity=velocity)
    assert theta["w"].item() == pytest.approx(after(4, momentum=0.5))
    assert velocity["w"].item() != 0
    plain = {"w": torch.tensor([1.0], dtype=torch.float64)}
    for _ in range(2):
        plain = optimise(gradient_of(bowl), plain, Steps(2), local, 0, generator(0))
    assert plain["w"].item() != pytest.approx(after(4, momentum=0.5))


@pytest.mark.parametrize("settings", [{"optimiser": "adam"}, {"momentum": 0.0}])
def test_only_sgd_has_a_momentum_to_carry(settings: dict[str, object]) -> None:
    with pytest.raises(ValidationError, match=r"needs local\.optimiser=sgd and a local\.momentum above 0"):
        ReleasedFedAvg.model_validate({"local": settings})
