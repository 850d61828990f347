"""Which branch a right prediction is owed to."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from seen_rounds import seen_round

from fedtailor.base.errors import UserError
from fedtailor.client.job import ClientState
from fedtailor.data.groups import Groups
from fedtailor.evaluation.diagnostics.predictions import branches, owing, shares
from world import world


def test_owing_by_hand() -> None:
    """Sums (4, 3), (1, 5), (2, 2.5), (4, 0), all but the third right; the branches are equally loud in the fourth."""
    l_G = torch.tensor([[3.0, 0.0], [0.0, 1.0], [2.0, 0.5], [2.0, 0.0]])
    l_P = torch.tensor([[1.0, 3.0], [1.0, 4.0], [0.0, 2.0], [2.0, 0.0]])
    right, to_global = owing(l_G, l_P, torch.tensor([0, 1, 0, 0]))
    assert right.tolist() == [True, True, False, True]
    assert to_global[right].tolist() == [True, False, False]


def test_shares_by_hand() -> None:
    """Head classes 0 and 1: two of three to the global branch; mid class 2: none right; tail class 3: one of one."""
    groups = Groups(np.array([0, 1]), np.array([2]), np.array([3]))
    found = shares(np.array([0, 1, 1, 3]), np.array([True, False, True, False]), groups)
    assert found == {
        "overall": {"global": 50, "personal": 50, "right": 4},
        "head": {"global": pytest.approx(200 / 3), "personal": pytest.approx(100 / 3), "right": 3},
        "mid": {"global": None, "personal": None, "right": 0},
        "tail": {"global": 0, "personal": 100, "right": 1},
    }


def test_before_and_after_the_personal_part() -> None:
    """Two-phase: nothing until the closing round, then all clients' own test parts."""
    experiment = world("fedpurel", "text_prompt", **{"method.T_p": 2})
    assert branches(seen_round(experiment, number=3)) is None
    seen = seen_round(experiment, number=4)
    found = branches(seen)
    assert found is not None
    right = 0
    for k, part in enumerate(experiment.tests.parts):
        theta = {**seen.after.params, **seen.clients[k].local}
        with torch.no_grad():
            x = experiment.tests.features.fetch(part)
            said = experiment.job.method.predict(experiment.job.model, theta, x).argmax(1)
        right += int((said.numpy() == experiment.tests.labels[part]).sum())
    assert found["overall"]["right"] == right > 0
    assert sum(found[group]["right"] for group in ("head", "mid", "tail")) == right
    assert found["overall"]["global"] + found["overall"]["personal"] == pytest.approx(100)


def test_a_personal_branch_that_says_less() -> None:
    """With a personal branch that says the opposite at half the loudness, every right prediction is the global's."""
    seen = seen_round(world("fedpurel", "text_prompt"))
    method = seen.job.method

    class Quiet(type(method)):  # type: ignore[misc]
        def branches(self, model: object, theta: dict[str, torch.Tensor], x: torch.Tensor) -> object:
            l_G = super().predict_shared(model, theta, x)
            return l_G, -l_G / 2

    local = {"local.text.ctx": seen.job.start["local.text.ctx"]}
    clients = {k: ClientState(local) for k in range(4)}
    job = replace(seen.job, method=Quiet(**dict(method)))
    found = branches(replace(seen, job=job, clients=clients))
    assert found is not None
    assert found["overall"] == {"global": 100, "personal": 0, "right": found["overall"]["right"]}
    assert found["overall"]["right"] > 0


def test_a_method_without_branches() -> None:
    experiment = world("fedavg", "text_prompt")
    with pytest.raises(UserError, match="FedAvg has no global and personal branch"):
        experiment.job.method.branches(experiment.job.model, experiment.job.start, torch.empty(0))
