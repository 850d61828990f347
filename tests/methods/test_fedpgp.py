"""FedPGP: equal to the authors' code, and equation by equation."""

from __future__ import annotations

import math

import pytest
import torch

from fedtailor.methods.fedpgp import ANCHOR, FedPGP, contrast, personal, placeholders
from golden_numbers import GoldenCase, close, close_gradient, follow, golden
from world import make_tuner, world


class Placeholder(FedPGP):
    """The golden CLIP has no tokenizer: its placeholder's text features are given."""

    def gradient(self, model, start):  # type: ignore[no-untyped-def]
        return super(FedPGP, self).gradient(model, {**start, ANCHOR: golden("fedpgp")["t_placeholder"]})


def test_as_released() -> None:
    g = golden("fedpgp")
    case = GoldenCase(make_tuner("text_prompt", {"length": 4}))
    theirs = {"global.text.ctx": "sigma", "local.U": "U", "local.V": "V"}
    theta = {name: g[f"input.prompt_learner.{key}"][0] for name, key in theirs.items()}
    method = Placeholder(rank=3, mu=float(g["mu"]), tau=float(g["temp"]))
    close(case.model.text({"text.ctx": theta["global.text.ctx"]}), g["t_sigma"])
    close(case.model.text(personal(theta)), g["t_personal"])
    close(method.predict(case.model, theta, case.x), g["logits"])
    close(method.loss(case.model, theta, case.batch, {**theta, ANCHOR: g["t_placeholder"]}), g["loss"])
    for step, (grads, after) in enumerate(follow(case, method, theta), 1):
        for name, key in theirs.items():
            if step == 1:
                close_gradient(grads[name], g[f"grad.prompt_learner.{key}"][0])
            torch.testing.assert_close(after[name], g[f"after_{step}_step.prompt_learner.{key}"][0], atol=2e-6, rtol=0)


def test_contrast_by_hand() -> None:
    """Eq. 6 with one class: cosines 0.8 to CLIP's sentence and 0.6 to the personal one, τ = 0.5.

    −ln(e^{1.6} / (e^{1.6} + e^{1.2})) = ln(1 + e^{−0.4}).
    """
    z_G, z_C, z_i = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.8, 0.6]]), torch.tensor([[0.6, 0.8]])
    assert contrast(z_C, z_G, z_i, 0.5).item() == pytest.approx(math.log(1 + math.exp(-0.4)))


def test_personal_prompt_is_a_low_rank_change() -> None:
    theta = {
        "global.text.ctx": torch.ones(2, 2),
        "local.U": torch.tensor([[1.0], [2.0]]),
        "local.V": torch.tensor([[3.0, 4.0]]),
    }
    assert personal(theta)["text.ctx"].tolist() == [[4.0, 5.0], [7.0, 9.0]]


def test_the_anchor_is_what_was_asked_for() -> None:
    """Eq. 7's z_C: the hand-written sentence, or that of "X X X X NAME."; each is used, and fixed."""
    seen = []
    for anchor in ("template", "placeholder"):
        experiment = world("fedpgp", **{"method.anchor": anchor})
        model, start = experiment.job.model, experiment.job.start
        batch = next(experiment.client_data[0].batches(4, True, torch.Generator().manual_seed(0)))
        leaves = {n: v.clone().requires_grad_() for n, v in start.items()}
        seen.append(experiment.job.method.gradient(model, start)(leaves, batch)["global.text.ctx"])
    assert not torch.allclose(seen[0], seen[1])
    assert placeholders(model).shape == start["global.text.ctx"].shape
    assert torch.equal(placeholders(model)[0], placeholders(model)[3])
    assert not placeholders(model).requires_grad


def test_only_the_shared_prompt_predicts_for_the_server() -> None:
    experiment = world("fedpgp")
    model, start, x = (
        experiment.job.model,
        experiment.job.start,
        experiment.tests.features.fetch(experiment.tests.everything),
    )
    shared = experiment.job.method.predict_shared(model, start, x)
    torch.testing.assert_close(shared, model.logits({"text.ctx": start["global.text.ctx"]}, x))
    assert not torch.allclose(shared, experiment.job.method.predict(model, start, x))
