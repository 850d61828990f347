"""FedOTP: equal to the authors' code, the plan's place in the logits, and who owns which prompt."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

from fedtailor.core.types import GLOBAL, LOCAL, Params
from fedtailor.methods.fedotp import FedOTP
from fedtailor.simulation.engine import make_engine
from fedtailor.simulation.loop import run_round
from golden_numbers import GoldenCase, close, close_gradient, follow, golden
from world import make_tuner, world


def golden_case() -> tuple[GoldenCase, Params]:
    case = GoldenCase(make_tuner("text_prompt", {"length": 4}))
    case.model = replace(case.model, reads="patches")
    case.x = case.model.clip.vision(golden("inputs")["images"].float(), "pixels", "patches")
    ctx = golden("fedotp_cot_eps0.1")["input.prompt_learner.ctx"]
    return case, {"global.text.ctx": ctx[0], "local.text.ctx": ctx[1]}


def test_as_released() -> None:
    """Logits, loss, gradients and two steps; the released logits of a picture depend on its batch by 7e-5."""
    g, (case, theta) = golden("fedotp_cot_eps0.1"), golden_case()
    method = FedOTP(eps=float(g["eps"]), gamma=float(g["top_percent"]), tolerance=float(g["thresh"]))
    assert method == FedOTP()
    found = method.predict(case.model, theta, case.x)
    close(found, g["logits_one_image_at_a_time"])
    close(found, g["logits"])
    close(method.loss(case.model, theta, case.batch, theta), g["loss"])
    for step, (grads, after) in enumerate(follow(case, method, theta), 1):
        for i, name in enumerate(theta):
            if step == 1:
                close_gradient(grads[name], g["grad.prompt_learner.ctx"][i])
            torch.testing.assert_close(after[name], g[f"after_{step}_step.prompt_learner.ctx"][i], atol=2e-6, rtol=0)


def on_paper(*sims: list[float]) -> Any:
    """A model of one class: a list of a prompt's similarities to the patches each, and a scale of 10."""
    table = torch.tensor(sims)

    def text(theta: Params, rng: torch.Generator | None) -> Tensor:
        return torch.eye(len(sims))[theta["which"]][None]

    def patches(theta: Params, x: Tensor, rng: torch.Generator | None) -> Tensor:
        return table.T[None]

    return SimpleNamespace(text=text, patches=patches, clip=SimpleNamespace(scale=10.0))


BOTH: Params = {"global.which": torch.tensor(0), "local.which": torch.tensor(1)}


def test_logits_by_hand() -> None:
    """scale · Σ T · sim, eps = 1, γ = 0.6, two patches of at most ½.

    Alone, a prompt of similarities (ln 9, 0) would take 0.54 and 0.06 of them; it gets (0.5, 0.1): 10 · 0.5 · ln 9.
    Two prompts alike get half of each. With (ln 3, 0) and (0, ln 3) each takes 0.3 in proportion 3 to 1,
    (0.225, 0.075) and (0.075, 0.225), and no patch is exhausted: 10 · 2 · 0.225 · ln 3.
    """
    method, x = FedOTP(eps=1, gamma=0.6, tolerance=0), torch.empty(1)
    steep = on_paper([math.log(9), 0.0], [math.log(9), 0.0])
    assert method.predict_shared(steep, BOTH, x).item() == pytest.approx(5 * math.log(9))
    assert method.predict(steep, BOTH, x).item() == pytest.approx(5 * math.log(9))
    crossed = on_paper([math.log(3), 0.0], [0.0, math.log(3)])
    assert method.predict(crossed, BOTH, x).item() == pytest.approx(4.5 * math.log(3))
    assert method.predict_shared(crossed, BOTH, x).item() == pytest.approx(4.5 * math.log(3))


def test_the_plan_is_a_constant_of_the_gradient() -> None:
    """d logit / d sim = scale · T, and nothing of how T moves: (5, 1) of the hand's (0.5, 0.1)."""
    sim = torch.tensor([[[math.log(9)], [0.0]]], requires_grad=True)
    model = on_paper([0.0])
    model.patches = lambda theta, x, rng: sim
    logit = FedOTP(eps=1, gamma=0.6, tolerance=0).predict_shared(model, BOTH, torch.empty(1))
    (slope,) = torch.autograd.grad(logit.sum(), sim)
    assert slope.flatten().tolist() == pytest.approx([5, 1])


def test_what_is_shared_alone_does_not_see_the_local_prompt() -> None:
    case, theta = golden_case()
    other = {**theta, "local.text.ctx": theta["local.text.ctx"] * 3}
    method = FedOTP()
    shared = method.predict_shared(case.model, theta, case.x)
    assert torch.equal(shared, method.predict_shared(case.model, other, case.x))
    assert not torch.allclose(shared, method.predict(case.model, theta, case.x), atol=1e-2)
    both = dict.fromkeys(theta, theta["global.text.ctx"])
    close(method.predict(case.model, both, case.x), shared)  # two prompts alike are one


@pytest.mark.parametrize("eps", [0.01, 0.001])
def test_small_eps_on_single_pictures(eps: float) -> None:
    """Where the released code has no plan; and a picture's logits are its own, but for the last bits of a product."""
    case, theta = golden_case()
    method = FedOTP(eps=eps)
    found = method.predict(case.model, theta, case.x)
    assert found.isfinite().all()
    alone = torch.cat([method.predict(case.model, theta, x[None]) for x in case.x])
    torch.testing.assert_close(alone, found, atol=1e-3, rtol=0)


def test_settings_have_bounds() -> None:
    for wrong in ({"gamma": 0.0}, {"gamma": 1.1}, {"eps": 0.0}, {"iterations": 0}, {"tolerance": -1.0}):
        with pytest.raises(ValidationError):
            FedOTP(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("tuner", ["text_prompt", "class_prompt"])
def test_one_prompt_is_shared_and_one_is_kept(tuner: str) -> None:
    """All clients in round 0, so that each has a local prompt; then only the cohort moves. Pictures are patches."""
    experiment = world("fedotp", tuner, rounds=2, fraction=0.5)
    model, method = experiment.job.model, experiment.job.method
    assert model.stage == "patches"
    assert next(experiment.client_data[0].batches(4, True, torch.Generator().manual_seed(0))).x.shape == (4, 5, 16)
    assert set(experiment.job.scopes.values()) == {GLOBAL, LOCAL}
    assert method.cohort(0, 4, 0.5, torch.Generator()) == [0, 1, 2, 3]
    engine, server = make_engine(experiment), experiment.job.first_server()
    assert all(name.startswith("global.") for name in server.params)
    seen = []
    for _ in range(2):
        server, _ = run_round(experiment, server, engine)
        seen.append({k: torch.cat([v.flatten() for v in c.local.values()]) for k, c in engine.clients.items()})
    first, second = seen
    assert all(not torch.equal(first[k], first[0]) for k in (1, 2, 3))
    assert sum(not torch.equal(first[k], second[k]) for k in range(4)) == 2
    assert all(not torch.equal(server.params[name], experiment.job.start[name]) for name in server.params)


def test_training_lowers_the_loss() -> None:
    """A client that trains for some epochs, of both prompts and of either alone."""
    experiment = world("fedotp", "text_prompt", **{"local.epochs": 15, "lr": 0.05})
    model, method, theta = experiment.job.model, experiment.job.method, experiment.job.start
    batch = next(experiment.client_data[0].batches(11, True, torch.Generator().manual_seed(0)))

    def loss(at: Params) -> float:
        return method.loss(model, at, batch, at).item()

    engine, server = make_engine(experiment), experiment.job.first_server()
    reply = engine(method.train, server, [0])[0]
    shared, own = {**theta, **reply.params}, {**theta, **engine.clients[0].local}
    assert loss({**shared, **engine.clients[0].local}) < loss(theta) - 0.05
    assert loss(shared) < loss(theta)
    assert loss(own) < loss(theta)
