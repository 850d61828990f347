"""PromptFolio: equal to the authors' code, and what the mixture does."""

from __future__ import annotations

import torch

from fedtailor.core.optim import LocalTraining, optimise
from fedtailor.methods.promptfolio import PromptFolio
from golden_numbers import GoldenCase, close, close_gradient, follow, golden
from world import make_tuner, world


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


def test_without_a_share_the_local_prompt_stays_and_is_not_read() -> None:
    """The departure: with θ = 0 weight decay does not touch the local prompt, as it does with any other θ; and since
    predictions do not depend on it there, that can't be seen in a number."""
    experiment = world("promptfolio")
    data, model, theta = experiment.client_data[0], experiment.job.model, experiment.job.start
    x = next(data.views()).x
    other = {**theta, "local.text.ctx": theta["local.text.ctx"] * 3}
    for share in (0.0, 0.4):
        method = PromptFolio(theta_mix=share)
        after = optimise(method.gradient(model, theta), theta, data, LocalTraining(lr=0.01), 0, torch.Generator())
        assert torch.equal(after["local.text.ctx"], theta["local.text.ctx"]) == (share == 0)
        assert not torch.equal(after["global.text.ctx"], theta["global.text.ctx"])
        found = [method.predict(model, it, x) for it in (theta, other)]
        assert torch.equal(*found) == (share == 0)
