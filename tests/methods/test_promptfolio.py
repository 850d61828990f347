"""PromptFolio: equal to the authors' code, and what the mixture does."""

from __future__ import annotations

import torch

from fedtailor.methods.promptfolio import PromptFolio
from golden_numbers import GoldenCase, close, close_gradient, follow, golden
from world import make_tuner


def golden_case() -> tuple[GoldenCase, dict[str, torch.Tensor]]:
    ctx = golden("promptfolio_theta0.4")["input.prompt_learner.ctx"]
    return GoldenCase(make_tuner("text_prompt", {"length": 4})), {"global.text.ctx": ctx[0], "local.text.ctx": ctx[1]}


def test_as_released() -> None:
    g, (case, theta) = golden("promptfolio_theta0.4"), golden_case()
    method = PromptFolio(theta_mix=float(g["theta"]))
    close(method.predict(case.model, theta, case.x), g["logits"])
    close(method.loss(case.model, theta, case.batch, theta), g["loss"])
    for step, (grads, after) in enumerate(follow(case, method, theta), 1):
        for i, name in enumerate(theta):
            if step == 1:
                close_gradient(grads[name], g["grad.prompt_learner.ctx"][i])
            torch.testing.assert_close(after[name], g[f"after_{step}_step.prompt_learner.ctx"][i], atol=2e-6, rtol=0)


def test_mixed_sentences_are_mixed_logits() -> None:
    """scale · z · ((1 − θ) t_G + θ t_L), the mixture not normalised again; the global model is t_G alone."""
    case, theta = golden_case()
    t_G, t_L = (case.model.text({"text.ctx": theta[name]}) for name in theta)
    z = case.model.image({"text.ctx": t_G}, case.x)
    mixed = 0.75 * t_G + 0.25 * t_L
    assert (mixed.norm(dim=-1) < 0.9999).all()
    method = PromptFolio(theta_mix=0.25)
    close(method.predict(case.model, theta, case.x), case.model.clip.scale * z @ mixed.T)
    close(method.predict_shared(case.model, theta, case.x), case.model.clip.scale * z @ t_G.T)
