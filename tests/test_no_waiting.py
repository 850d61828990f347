"""A training step never looks at a number that a GPU computes, for which the processor would have to wait. Such a look
is the same operation on every device, so it can be counted here."""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from fedtailor.client.step import check_params
from fedtailor.core import method as core_method
from fedtailor.core import optim
from fedtailor.core.optim import Gradient
from fedtailor.core.types import Batch, Params
from fedtailor.methods import METHODS, fedpurel
from fedtailor.simulation.engine import make_engine
from fedtailor.simulation.loop import run_round
from world import combinations, under_law, world

TRAINED = [(m, t) for m, t in combinations() if METHODS[m].method.trains]
LOOKS = {torch.ops.aten._local_scalar_dense.default, torch.ops.aten.nonzero.default}
# What may be looked at, and why.
ALLOWED = {
    "optimal_transport.py": "FedOTP's transport ends when it has converged",
    "fedgrab.py": "Fed-GraB draws which controllers are let go, once a pass",
    "model.py": "a seed, drawn on the processor, of dropout in recomputed sentences",
}


class Looks(TorchDispatchMode):
    """Where the steps of our own code ask for a number's value."""

    def __init__(self) -> None:
        super().__init__()
        self.found: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        if func in LOOKS:
            ours = [frame for frame in traceback.extract_stack() if "/fedtailor/" in frame.filename]
            self.found[f"{ours[-1].filename.rpartition('/')[2]}:{ours[-1].line}"] += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("pair", under_law(TRAINED))
def test_no_step_waits(pair: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    experiment, looks, steps = world(*pair), Looks(), list[int]()

    def optimise(gradient: Gradient, *given: Any, **more: Any) -> Params:
        def watched(theta: Params, batch: Batch) -> Params:
            steps.append(1)
            with looks:
                return gradient(theta, batch)

        return optim.optimise(watched, *given, **more)

    for module in (core_method, fedpurel):
        monkeypatch.setattr(module, "optimise", optimise)
    run_round(experiment, experiment.job.first_server(), make_engine(experiment))
    assert steps
    assert [place for place in looks.found if place.partition(":")[0] not in ALLOWED] == []


def test_a_look_is_found() -> None:
    """Whether a reply is finite is looked at, after the last step."""
    with Looks() as looks:
        check_params({"w": torch.ones(3)}, {"w": torch.ones(3)}, "here")
    assert list(looks.found) == ["step.py:if not torch.isfinite(value).all():"]
