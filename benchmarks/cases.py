"""The methods whose training step is measured, each with its own tuner, as its recipe sets it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from fedtailor.clip.model import Clip
from fedtailor.core.losses import task_loss
from fedtailor.core.method import Method, TwoBranches, branch
from fedtailor.core.model import Model
from fedtailor.core.types import Batch, Params
from fedtailor.settings.run import make_run

from .clips import make_model

NOISE = 0.01  # on first values: LoRA's B begins at zero, and would hide a wrong gradient of A


@dataclass(frozen=True)
class Case:
    method: str
    settings: dict[str, Any] = field(default_factory=dict)
    batch: int = 32


CASES = {
    "promptfl": Case("promptfl", {"tuner.length": 16}),
    "fedpurel-prompt": Case("fedpurel"),
    "fedpurel-adapter": Case("fedpurel", {"tuner": "adapter"}),
    "fedcopl": Case("fedcopl"),
    "clip-lora": Case("clip-lora"),
    "fedpurel-lora": Case("fedpurel", {"tuner": "lora"}),
    "capt": Case("capt"),
    "maple": Case("maple", batch=4),  # its paper's
    "cocoop": Case("cocoop", batch=1),  # its paper's: with more, the naive step does not fit into memory
}


@dataclass(frozen=True)
class Scene:
    """A method in the middle of its training."""

    method: Method
    model: Model
    theta: Params  # what is trained
    start: Params  # what the client was given
    labels: Tensor

    def gradient(self, x: Tensor, plain: Tensor | None) -> Params:
        """The method's own step."""
        return self.method.gradient(self.model, self.start)(self.theta, self.batch(x, plain))

    def loss(self, x: Tensor, plain: Tensor | None) -> Tensor:
        """What the step descends on; a method that purifies its gradient has no loss function of its own."""
        batch = self.batch(x, plain)
        with torch.no_grad():
            if isinstance(self.method, TwoBranches):
                return task_loss(self.model.logits(branch(self.theta, "global."), x), batch)
            return self.method.loss(self.model, self.theta, batch, self.start)

    def batch(self, x: Tensor, plain: Tensor | None = None) -> Batch:
        """Without a generator, so without dropout: two ways to compute would drop different numbers."""
        return Batch(x, self.labels[: len(x)], torch.arange(len(x)), None, plain)


def make_scene(name: str, clip: Clip, classes: int) -> Scene:
    case, rng = CASES[name], torch.Generator().manual_seed(2)
    run = make_run(case.method, case.settings)
    model = make_model(clip, run.tuner.value, classes, run.method.value.reads)
    first = run.method.value.init(model, rng)
    moved = {name: value + NOISE * torch.randn(value.shape, generator=rng) for name, value in first.items()}
    theta = {name: value.requires_grad_() for name, value in moved.items() if not name.startswith("local.")}
    counts = torch.randint(1, 50, (classes,), generator=rng)
    labels = torch.randint(classes, (case.batch,), generator=rng)
    return Scene(run.method.value, model, theta, {**moved, "counts": counts}, labels)
