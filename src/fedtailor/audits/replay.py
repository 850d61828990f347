"""A client's gradient as whoever knows method, model and parameters would compute it, as a function of its pictures.

It is the method's own `gradient`, whatever that does besides; only the towers are made of what can be differentiated
twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from ..client.job import Task
from ..core.lockstep import HERE
from ..core.method import Method
from ..core.model import Model
from ..core.optim import GradientCall
from ..core.types import Batch, Params


def thawed(model: Model) -> Model:
    """The same model, of operations that have second derivatives: those of frozen weights have none."""
    return replace(model, clip=deepcopy(model.clip).requires_grad_(True), budget=float("inf"), memo=None)


class AsFunctions:
    """Answers what a method asks for with gradients that are functions themselves."""

    def ask(self, call: Any) -> Any:
        if not isinstance(call, GradientCall):
            return call.answer([call])[0]
        leaves = {name: value for name, value in call.theta.items() if value.requires_grad}
        found = torch.autograd.grad(call.loss, list(leaves.values()), create_graph=True, allow_unused=True)
        return {name: slope for name, slope in zip(leaves, found, strict=True) if slope is not None}


@contextmanager
def differentiable() -> Iterator[None]:
    HERE.client = AsFunctions()
    try:
        with sdpa_kernel(SDPBackend.MATH):  # the fused kernels have no second derivative
            yield
    finally:
        del HERE.client


@dataclass(frozen=True)
class Replay:
    method: Method
    model: Model  # thawed
    start: Params  # every parameter as the attacker takes it to be; what a client keeps is not known
    task: Task
    names: Sequence[str]  # of what left
    batch: Batch  # whose pictures are looked for; all else is known, and what was drawn too, as it comes from the seed

    @cached_property
    def gradient(self) -> Callable[[Params, Batch], Params]:
        return self.method.gradient(self.model, {**self.start, **self.task.inbox})

    @cached_property
    def theta(self) -> Params:
        return {n: v.detach().clone().requires_grad_(n in self.names) for n, v in self.start.items()}

    @cached_property
    def drawn(self) -> Tensor | None:
        return None if self.batch.rng is None else self.batch.rng.get_state()

    def __call__(self, x: Tensor, plain: Tensor | None = None) -> Tensor:
        """(P,) the gradient on pictures at the model's stage; `plain`: CLIP's features, for methods with a teacher."""
        rng = None if self.drawn is None else torch.Generator().set_state(self.drawn)
        batch = replace(self.batch, x=x, rng=rng, plain=None if self.batch.plain is None else plain)
        with differentiable():
            found = self.gradient(self.theta, batch)
        return self.flat({n: found.get(n, torch.zeros_like(self.theta[n])) for n in self.names})

    def flat(self, params: Params) -> Tensor:
        return torch.cat([params[name].flatten() for name in self.names])

    def pictured(self, pixels: Tensor) -> Tensor:
        """The gradient on pictures as they go into the image tower."""
        tower = self.model.clip.vision
        with differentiable():
            x = tower(pixels, "pixels", self.model.stage)
            same = self.model.stage == "features"
            plain = None if self.batch.plain is None else x if same else tower(pixels, "pixels", "features")
        return self(x, plain)
