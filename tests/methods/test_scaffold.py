"""SCAFFOLD, line by line of Algorithm 1."""

from __future__ import annotations

import pytest
import torch

from fedtailor.base.errors import UserError
from fedtailor.core.types import Reply, Server
from fedtailor.methods.scaffold import ALL, MINE, Scaffold
from fedtailor.simulation.engine import make_engine
from fedtailor.simulation.loop import run_round
from world import CLIENTS, settings, world

QUIET = {"local.weight_decay": 0.0}


def test_steps_are_corrected() -> None:
    """l. 10: g(y) − c_i + c."""
    experiment = world("scaffold")
    start = {n: v.clone().requires_grad_() for n, v in experiment.job.start.items()}
    batch = next(experiment.client_data[0].batches(4, True, torch.Generator().manual_seed(0)))
    method, model, one = experiment.job.method, experiment.job.model, torch.ones_like(start["text.ctx"])
    plain = method.gradient(model, start)(start, batch)["text.ctx"]
    known = {**start, ALL + "text.ctx": 5 * one, MINE + "text.ctx": 2 * one}
    torch.testing.assert_close(method.gradient(model, known)(start, batch)["text.ctx"], plain + 3)


def test_a_clients_control_is_its_mean_gradient() -> None:
    """l. 12, option II: from c = c_i = 0 it is (x − y)/(K η_l), and so, with a tiny rate, the gradient at x."""
    experiment = world("scaffold", lr=1e-6, batch=64, rounds=1, **QUIET)
    engine = make_engine(experiment)
    server, cohort = run_round(experiment, experiment.job.first_server(), engine)
    (name,) = experiment.job.start
    for k in cohort:
        start = {n: v.clone().requires_grad_() for n, v in experiment.job.start.items()}
        batch = next(experiment.client_data[k].batches(64, True, torch.Generator().manual_seed(0)))
        g = experiment.job.method.gradient(experiment.job.model, start)(start, batch)[name]
        kept = engine.clients[k].memory[MINE + name]
        assert (kept - g).norm() < 0.05 * g.norm()  # a difference of nearby floats, divided by 1e-6
    mean = sum(engine.clients[k].memory[MINE + name] for k in cohort) / CLIENTS
    torch.testing.assert_close(server.state[ALL + name], mean)  # l. 17, over all N clients


def test_server_by_hand() -> None:
    """l. 16–17 with N = 4, |S| = 2: x = 1, y = 2 and 4, η_g = 0.5: 1 + 0.5 · 2; c = 1 + (2/4) · mean(3, 5) = 3."""
    stats = [{ALL + "a": torch.tensor(d)} for d in (3.0, 5.0)]
    replies = {k: Reply({"a": torch.tensor(y)}, w, stats[k]) for k, (y, w) in enumerate(((2.0, 1.0), (4.0, 9.0)))}
    server = Server(0, {"a": torch.tensor(1.0)}, state={ALL + "a": torch.tensor(1.0)}, clients=4)
    after = Scaffold(eta_g=0.5).aggregate(server, replies)
    assert after.params["a"].item() == pytest.approx(2.0)
    assert after.state[ALL + "a"].item() == pytest.approx(3.0)


def test_controls_come_from_all_rounds() -> None:
    """l. 12: c_i+ = c_i − c + (x − y)/(K η). With one client c = c_i, so its steps are never corrected."""
    alone = {"clients": 1, "fraction": 1.0, **QUIET}
    plain = {"local.momentum": 0.0}
    one, other = world("scaffold", **alone), world("fedavg", **alone, **plain)
    ends = []
    for experiment in (one, other):
        engine, server = make_engine(experiment), experiment.job.first_server()
        while server.round < experiment.rounds:
            server, _ = run_round(experiment, server, engine)
        ends.append(server.params["text.ctx"])
    torch.testing.assert_close(ends[0], ends[1], atol=1e-5, rtol=0)


@pytest.mark.parametrize("wrong", [{"local.momentum": 0.9}, {"local.optimiser": "adam"}, {"local.clip": 1.0}])
def test_other_optimisers_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(UserError, match="plain sgd"):
        settings("scaffold", "text_prompt", **wrong)
