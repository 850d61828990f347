"""FedProx, equation by equation."""

from __future__ import annotations

import pytest
import torch

from fedtailor.core.types import Batch
from fedtailor.methods.fedavg import FedAvg
from fedtailor.methods.fedprox import FedProx
from fedtailor.simulation.engine import make_engine
from world import world


def batch() -> Batch:
    return next(world().client_data[0].batches(4, True, torch.Generator().manual_seed(0)))


def test_proximal_term() -> None:
    """Eq. 2: h = F + μ/2 ‖w − w^t‖². With w − w^t = 0.1 in each of n entries and μ = 0.6: 0.3 · 0.01 · n more."""
    job = world().job
    start = job.start
    theta = {name: value + 0.1 for name, value in start.items()}
    plain = FedAvg().loss(job.model, theta, batch(), start)
    n = sum(value.numel() for value in start.values())
    assert (FedProx(mu=0.6).loss(job.model, theta, batch(), start) - plain).item() == pytest.approx(
        0.3 * 0.01 * n, rel=1e-4
    )


def test_proximal_gradient_is_real() -> None:
    """∇h − ∇F = μ (w − w^t): the pull moves the parameters, which a term of detached tensors would not."""
    job = world().job
    start = job.start
    theta = {name: (value + 0.1).requires_grad_() for name, value in start.items()}
    (name,) = theta

    def gradient(method: FedAvg | FedProx) -> torch.Tensor:
        return torch.autograd.grad(method.loss(job.model, theta, batch(), start), theta[name])[0]

    pull = gradient(FedProx(mu=0.6)) - gradient(FedAvg())
    torch.testing.assert_close(pull, 0.6 * (theta[name] - start[name]).detach(), atol=1e-5, rtol=1e-3)


def test_a_stronger_pull_stays_closer() -> None:
    def moved(mu: float) -> float:
        experiment = world("fedprox", rounds=1, **{"method.mu": mu, "epochs": 5})
        engine = make_engine(experiment)
        server = experiment.job.method.round(experiment.job.first_server(), [0, 1], engine)
        return sum((server.params[n] - v).norm().item() for n, v in experiment.job.start.items())

    assert moved(50.0) < moved(1.0) < moved(0.0)
