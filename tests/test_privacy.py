"""The privacy step: by name, for any method, and on everything that leaves a client."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from pydantic import Field

from fedtailor.base.errors import UserError
from fedtailor.core.types import LOCAL, Reply
from fedtailor.privacy import PRIVACY
from fedtailor.privacy.base import Leaving, PrivacyStep
from fedtailor.settings.run import make_run
from fedtailor.simulation.engine import make_engine
from fedtailor.simulation.loop import run_round
from world import world


class Bounded(PrivacyStep):
    """No update is longer than this."""

    most: float = Field(1e-3, gt=0)

    def __call__(self, reply: Reply, at: Leaving) -> Reply:
        change = {name: value - at.start[name] for name, value in reply.params.items()}
        length = float(torch.cat([value.flatten() for value in change.values()]).norm())
        factor = min(1.0, self.most / length) if length else 1.0
        return replace(reply, params={name: at.start[name] + factor * value for name, value in change.items()})


@pytest.fixture
def bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PRIVACY, "bounded", Bounded)


@pytest.mark.usefixtures("bounded")
def test_a_mechanism_is_a_choice() -> None:
    """A class and a line in PRIVACY make it a setting, with checked options, that run.toml holds."""
    run = make_run("fedavg", {"privacy": "bounded", "privacy.most": 0.5})
    assert run.privacy.value == Bounded(most=0.5)
    assert run.document()["privacy"] == {"name": "bounded", "generator": "secret", "most": 0.5}
    with pytest.raises(UserError, match=r"privacy\.most: input should be greater than 0"):
        make_run("fedavg", {"privacy": "bounded", "privacy.most": 0})
    with pytest.raises(UserError, match=r"unknown privacy 'bouned'; did you mean 'bounded'"):
        make_run("fedavg", {"privacy": "bouned"})


@pytest.mark.usefixtures("bounded")
@pytest.mark.parametrize(
    ("method", "tuner"), [("fedavg", "text_prompt"), ("fedpurel", "text_prompt"), ("fedsa-lora", "lora")]
)
def test_it_bounds_every_update(method: str, tuner: str) -> None:
    """It sees what the server sent: an update is bounded, not a parameter. What stays with a client is left alone."""
    experiment = world(method, tuner, privacy="bounded", lr=0.1)
    engine, server = make_engine(experiment), experiment.job.first_server()
    engine.trace = []
    run_round(experiment, server, engine)
    assert engine.trace
    moved = False
    for step in engine.trace:
        change = [(step.reply.params[n] - step.task.params[n]).flatten() for n in step.reply.params]
        assert torch.cat([torch.zeros(0), *change]).norm() <= 1e-3 * (1 + 1e-3)
        own = [n for n, scope in experiment.job.scopes.items() if scope == LOCAL and n in step.after.local]
        moved |= any((step.after.local[n] - experiment.job.start[n]).norm() > 1e-3 for n in own)
    assert moved == (method == "fedsa-lora")
