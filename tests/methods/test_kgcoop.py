"""KgCoOp: equal to the authors' code, and equation by equation."""

from __future__ import annotations

import pytest
import torch

from fedtailor.methods.kgcoop import KgCoOp, distance
from fedtailor.simulation.engine import make_engine
from golden_numbers import GoldenCase, close, close_gradient, follow, golden
from world import make_tuner, world


def test_as_released() -> None:
    g = golden("kgcoop_photo")
    case = GoldenCase(make_tuner("text_prompt", {"length": 4}))
    theta, method = {"text.ctx": g["input.prompt_learner.ctx"]}, KgCoOp(lam=float(g["w"]))
    close(case.model.zero_shot, g["reference_text_features_normalised"])
    close(case.logits(theta), g["logits"])
    close(distance(case.model.text(theta), case.model.zero_shot), g["score_1_minus_mean_cos"])
    close(method.loss(case.model, theta, case.batch, theta), g["loss"])
    for step, (grads, after) in enumerate(follow(case, method, theta), 1):
        if step == 1:
            close_gradient(grads["text.ctx"], g["grad.prompt_learner.ctx"])
        key = f"after_{step}_step.prompt_learner.ctx"
        torch.testing.assert_close(after["text.ctx"], g[key], atol=2e-6, rtol=0)


def test_distance_by_hand() -> None:
    """Eq. 4 on unit vectors: cosines 1 and 0.6, so 1 − 0.8. ‖w − w_clip‖² is twice that on average: (0 + 0.8) / 2."""
    w, w_clip = torch.tensor([[1.0, 0.0], [0.6, 0.8]]), torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    assert distance(w, w_clip).item() == pytest.approx(0.2)
    assert (w - w_clip).square().sum(-1).mean().item() == pytest.approx(2 * 0.2)


def test_a_stronger_hold_stays_nearer() -> None:
    """Eq. 5: λ weighs the term."""

    def far(lam: float) -> float:
        experiment = world("kgcoop", rounds=1, **{"method.lam": lam, "epochs": 5, "tuner.words": ""})
        server = experiment.job.method.round(experiment.job.first_server(), [0, 1], make_engine(experiment))
        return distance(experiment.job.model.text(server.params), experiment.job.model.zero_shot).item()

    assert far(50.0) < far(1.0) < far(0.0)
