"""Server optimisers, by hand, and with any method."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from fedtailor.core.types import Server
from fedtailor.server_optimizers.base import ServerOptimizer
from fedtailor.server_optimizers.fedadam import FedAdam
from fedtailor.server_optimizers.fedavgm import FedAvgM
from fedtailor.simulation.engine import make_engine
from fedtailor.simulation.loop import run_round
from world import world


def two_rounds(step: ServerOptimizer) -> list[float]:
    """From x = 0 the clients' mean is first 1 further, then 2 further than the server."""
    server, seen = Server(0, {"a": torch.zeros(1)}), []
    for change in (1.0, 2.0):
        after = replace(server, params={"a": server.params["a"] + change})
        server = step(server, after)
        seen.append(server.params["a"].item())
    return seen


def test_momentum_by_hand() -> None:
    """β = 0.5, η = 2: v = 1, x = 2; v = 0.5 + 2, x = 2 + 5."""
    assert two_rounds(FedAvgM(eta=2, beta=0.5)) == pytest.approx([2.0, 7.0])
    assert two_rounds(FedAvgM(eta=1, beta=0)) == [1.0, 3.0]


def test_adam_by_hand() -> None:
    """β₁ = 0.5, β₂ = 0.75, τ = 1, η = 1: m = ½, v = ¾ + ¼, x = ½/(1 + 1); m = ¼ + 1, v = ¾ + 1."""
    first = 0.5 / 2
    second = first + 1.25 / (1.75**0.5 + 1)
    assert two_rounds(FedAdam(eta=1, beta1=0.5, beta2=0.75, tau=1)) == pytest.approx([first, second])


def test_what_did_not_change_takes_no_step() -> None:
    """A method that did not aggregate in a round is not pushed on by momentum, nor what it makes itself."""
    x = {"a": torch.zeros(1), "b": torch.zeros(1)}
    moved = {"a": torch.ones(1), "b": torch.ones(1)}
    first = FedAvgM()(Server(0, x), Server(0, moved), made=("b",))
    again = FedAvgM()(first, first, made=("b",))
    assert again.params["a"].item() == first.params["a"].item() == 1
    assert set(first.state) == {"server.m.a"}


@pytest.mark.parametrize(("method", "tuner"), [("fedavg", "text_prompt"), ("capt", "coupled+class_prompt")])
def test_any_method_takes_one(method: str, tuner: str) -> None:
    ends = {}
    for name in ("average", "fedavgm", "fedadam"):
        experiment = world(method, tuner, server=name)
        engine, server = make_engine(experiment), experiment.job.first_server()
        while server.round < experiment.rounds:
            server, _ = run_round(experiment, server, engine)
        ends[name] = torch.cat([v.flatten() for v in server.params.values()])
        assert torch.isfinite(ends[name]).all()
    assert not torch.equal(ends["average"], ends["fedavgm"])
    assert not torch.equal(ends["average"], ends["fedadam"])


def test_no_momentum_is_no_server_optimiser() -> None:
    ends = []
    for more in ({}, {"server": "fedavgm", "server.beta": 0.0}):
        experiment = world(**more)
        engine, server = make_engine(experiment), experiment.job.first_server()
        while server.round < experiment.rounds:
            server, _ = run_round(experiment, server, engine)
        ends.append(server.params["text.ctx"])
    assert torch.equal(ends[0], ends[1])
