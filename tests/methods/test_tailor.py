"""Tailor: a client's model is the shared one under its own class frequencies, which it counts and keeps."""

from __future__ import annotations

from math import log

import pytest
import torch
from torch import Tensor

from fedtailor.client.job import ClientState
from fedtailor.core import Batch, Model, Params
from fedtailor.evaluation.testing import personal_theta
from fedtailor.methods.tailor import PRIOR, Tailor
from fedtailor.simulation.engine import make_engine
from fedtailor.simulation.loop import run_round
from world import world


def test_frequencies_by_hand() -> None:
    """Counts 3, 1 and 0 with half a picture on top are 3.5, 1.5 and 0.5: ln of each, up to a constant."""
    experiment = world("tailor")

    class Counted:
        def counts(self) -> torch.Tensor:
            return torch.tensor([3, 1, 0])

    class Someone:
        data = Counted()

    found = Tailor(alpha=0.5).count(experiment.job.model, Someone(), {}).params[PRIOR]  # type: ignore[arg-type]
    torch.testing.assert_close(found - found[2], torch.tensor([log(7), log(3), 0.0]))


def test_a_clients_model_is_the_shared_one_under_its_own_frequencies() -> None:
    """s(x) + τ ln π_k for everyone, also for who never trained; the server's model is s alone."""
    experiment = world("tailor", **{"method.tau": 0.7})
    engine, job = make_engine(experiment), experiment.job
    server, cohort = run_round(experiment, job.first_server(), engine)
    assert set(cohort) < set(range(experiment.run.clients))
    assert PRIOR not in server.params
    x = next(experiment.client_data[0].views()).x
    method = job.method
    for k in range(experiment.run.clients):
        own = engine.clients[k].local
        counts = experiment.client_data[k].counts() + 0.5
        torch.testing.assert_close(own[PRIOR].softmax(0), counts / counts.sum())
        theta = personal_theta(job, server, k, engine.clients[k])
        s = job.model.logits({n: v for n, v in theta.items() if n != PRIOR}, x)
        torch.testing.assert_close(method.predict(job.model, theta, x), s + 0.7 * own[PRIOR])
        torch.testing.assert_close(method.predict_shared(job.model, theta, x), s)


def test_the_loss_by_hand() -> None:
    """−ln of softmax(s + ρ ln π_k): a class that the client lacks (ln π_k small) is hardly pushed away.

    s = 0 for both classes, π_k up to a constant (e², 1), ρ = 0.5, picture of class 0: ln(1 + e⁻¹) = 0.3133.
    """

    class Even(Tailor):
        def logits(self, model: Model, theta: Params, x: Tensor, rng: torch.Generator | None = None) -> Tensor:
            return torch.zeros(len(x), 2)

    batch = Batch(torch.zeros(1, 3), torch.tensor([0]), torch.tensor([0]))
    found = Even(rho=0.5).loss(world("tailor").job.model, {}, batch, {PRIOR: torch.tensor([2.0, 0.0])})
    assert found.item() == pytest.approx(0.31326, abs=1e-5)


def test_who_trains_learns_what_fedavg_learns() -> None:
    """At ρ = 0 frequencies have no part in training; training never has one in them."""
    servers = []
    for name, own in (("tailor", {"method.rho": 0.0}), ("fedavg", {})):
        experiment = world(name, "text_prompt", lr=0.01, **own)
        engine = make_engine(experiment)
        server = experiment.job.first_server()
        before: dict[int, ClientState] = {}
        while server.round < experiment.rounds:
            server, _ = run_round(experiment, server, engine)
            if name == "tailor":
                now = {k: engine.clients[k] for k in range(experiment.run.clients)}
                assert all(torch.equal(now[k].local[PRIOR], it.local[PRIOR]) for k, it in before.items())
                before = now
        servers.append(server)
    for parameter, value in servers[1].params.items():
        assert torch.equal(servers[0].params[parameter], value)
