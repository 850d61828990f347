"""Under a memory budget, activations are computed again in the backward pass: the same gradient, fewer kept."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

import fedtailor
from fedtailor.base.rng import generator
from fedtailor.client.features import CachedFeatures
from fedtailor.core.optim import gradients
from fedtailor.simulation.build import Experiment
from fedtailor.simulation.engine import make_engine
from world import world

TUNERS = ["text_prompt", "class_prompt", "visual_prompt", "coupled+class_prompt", "lora", "text_prompt+lora"]


def step(experiment: Experiment, budget: float) -> tuple[dict[str, Tensor], int, Tensor]:
    """A batch's gradient, the bytes that were kept for it, and what the generator draws next."""
    kept: dict[int, int] = {}

    def keep(value: Tensor) -> Tensor:
        kept[value.data_ptr()] = value.untyped_storage().nbytes()
        return value

    job, rng = experiment.job, generator(1)
    model = replace(job.model, budget=budget)
    theta = {name: value.clone().requires_grad_() for name, value in job.start.items()}
    batch = next(experiment.client_data[0].batches(8, True, rng))
    inbox = {"counts": torch.ones(5, dtype=torch.int64)}
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda value: value):
        loss = job.method.loss(model, theta, batch, {**theta, **inbox})
    frozen = {p.data_ptr() for p in model.clip.parameters()}
    size = sum(bytes_ for at, bytes_ in kept.items() if at not in frozen)
    return gradients(loss, theta), size, torch.rand(3, generator=rng)


@pytest.mark.parametrize("tuner", TUNERS)
def test_the_same_gradient(tuner: str) -> None:
    """To the bit, with dropout too, and the generator is where it would be."""
    experiment = world("capt" if tuner == "coupled+class_prompt" else "fedavg", tuner)
    plain, size, after = step(experiment, float("inf"))
    again, less, then = step(experiment, 1.0)
    assert plain.keys() == again.keys()
    assert all(torch.equal(plain[name], again[name]) for name in plain)
    assert torch.equal(after, then)
    assert less < size / 2


def test_a_budget_that_is_kept_changes_nothing() -> None:
    experiment = world("fedavg", "text_prompt")
    tower, layout = experiment.job.model.clip.text, experiment.job.model.layout
    enough = 2.0 * tower.kept(layout)
    assert step(experiment, enough)[1] == step(experiment, float("inf"))[1]
    assert step(experiment, enough - 2)[1] < step(experiment, enough)[1]


def test_the_estimate_is_about_what_is_kept() -> None:
    """For a text prompt nearly all that is kept is the tower's; tiny layers keep statistics of norms and masks too."""
    experiment = world("fedavg", "text_prompt")
    tower, layout = experiment.job.model.clip.text, experiment.job.model.layout
    assert tower.kept(layout) == pytest.approx(step(experiment, float("inf"))[1], rel=0.5)


def test_as_a_setting() -> None:
    """In gigabytes, for all clients that train at a time; the run's numbers are the same to the bit."""
    found = []
    for more in ({}, {"memory.budget_gb": 1e-9}, {"memory.budget_gb": 1e-9, "threads": 2}):
        experiment = world("fedavg", "text_prompt+lora", **{"threads": 1, **more})
        server = experiment.job.method.round(experiment.job.first_server(), [0, 1], make_engine(experiment))
        found.append((experiment.job.model.budget, server.params))
    assert [budget for budget, _ in found] == [float("inf"), 1.0, 0.5]
    assert all(torch.equal(params[name], found[0][1][name]) for _, params in found[1:] for name in params)
    assert isinstance(experiment.tests.features, CachedFeatures)
    with pytest.raises(fedtailor.UserError, match=r"memory.budget_gb: .*greater than or equal to 0"):
        fedtailor.make_run("capt", {"memory.budget_gb": -1})
