"""Local optimisation over a Params dict, begun anew for every client and round."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor
from torch.optim.adam import adam
from torch.optim.adamw import adamw
from torch.optim.sgd import sgd

from .lockstep import ask
from .types import Batch, Options, Params, Samples, Steps

Beta = Annotated[float, Field(ge=0, lt=1)]
Gradient = Callable[[Params, Batch], Params]


class LocalTraining(Options):
    """How a client trains. The defaults are those of the PromptFL family of codes."""

    epochs: int = Field(1, ge=1, title="E", description="passes over the client's data in a round")
    batch: int = Field(32, ge=1, title="B", description="samples in a step")
    lr: float = Field(1e-3, gt=0, allow_inf_nan=False, title="η", description="learning rate")
    optimiser: Literal["sgd", "adam", "adamw"] = "sgd"
    momentum: float = Field(0.9, ge=0, lt=1, description="of sgd")
    nesterov: bool = Field(False, description="sgd with Nesterov's momentum")
    weight_decay: float = Field(5e-4, ge=0, allow_inf_nan=False)
    betas: tuple[Beta, Beta] = Field((0.9, 0.999), description="of adam and adamw")
    eps: float = Field(1e-8, gt=0, allow_inf_nan=False, description="of adam and adamw")
    schedule: Literal["constant", "cosine", "step"] = Field("constant", description="of the learning rate, by epoch")
    span: int = Field(0, ge=0, description="epochs in a cycle of the schedule, across rounds; 0: one round is a cycle")
    step: int = Field(1, ge=1, description="schedule=step: epochs between two drops")
    gamma: float = Field(0.1, gt=0, le=1, description="schedule=step: factor of a drop")
    clip: float = Field(0.0, ge=0, description="largest norm of a step's whole gradient; 0: unlimited")
    drop_last: bool = Field(True, description="leave out an epoch's last, smaller batch (unless it is the only one)")

    @model_validator(mode="after")
    def fits(self) -> Self:
        if self.nesterov and self.momentum == 0:
            raise ValueError("nesterov needs a momentum above 0")
        return self

    def rate(self, round_: int, epoch: int) -> float:
        """The learning rate of an epoch of a round."""
        span = self.span or self.epochs
        at = (round_ * self.epochs + epoch) % span if self.span else epoch
        if self.schedule == "cosine":
            return self.lr * 0.5 * (1 + math.cos(math.pi * at / span))
        if self.schedule == "step":
            return self.lr * self.gamma ** (at // self.step)
        return self.lr


class Optimiser:
    """SGD, Adam or AdamW over a Params dict, in place, by torch's functions for them: its classes take a second to
    import what they do not need here."""

    def __init__(self, local: LocalTraining, theta: Params, velocity: Params | None = None) -> None:
        self.local, self.theta = local, theta
        self.velocity: dict[str, Tensor | None] = {
            name: value.clone().to(theta[name].device) for name, value in (velocity or {}).items()
        }
        self.moments: dict[str, tuple[Tensor, Tensor, Tensor]] = {}  # of adam: m, v, number of steps

    @torch.no_grad()
    def step(self, grads: Params, lr: float) -> None:
        names, local = [name for name in self.theta if name in grads], self.local
        leaves, slopes = [self.theta[name] for name in names], [grads[name] for name in names]
        common: dict[str, Any] = {"lr": lr, "weight_decay": local.weight_decay, "maximize": False}
        if local.optimiser == "sgd":
            buffers = [self.velocity.get(name) for name in names]
            sgd(leaves, slopes, buffers, momentum=local.momentum, dampening=0, nesterov=local.nesterov, **common)
            self.velocity.update(zip(names, buffers, strict=True))
            return
        for name, value in zip(names, leaves, strict=True):
            if name not in self.moments:
                self.moments[name] = torch.zeros_like(value), torch.zeros_like(value), torch.tensor(0.0)
        m, v, steps = (list(column) for column in zip(*(self.moments[name] for name in names), strict=True))
        (beta1, beta2), run = local.betas, adam if local.optimiser == "adam" else adamw
        run(leaves, slopes, m, v, [], steps, amsgrad=False, beta1=beta1, beta2=beta2, eps=local.eps, **common)


def gradients(loss: Tensor, theta: Params, retain_graph: bool = False) -> Params:
    """By name. A FIXED parameter has none, and neither has one that this loss does not reach (allow_unused)."""
    return ask(GradientCall(loss, theta, retain_graph))


@dataclass(frozen=True, eq=False)
class GradientCall:
    """Several clients' losses share a graph where they went through a tower together: one backward pass for all."""

    loss: Tensor
    theta: Params
    retain_graph: bool
    key = ()

    @property
    def last(self) -> bool:
        return not self.retain_graph

    def answer(self, calls: Sequence[GradientCall]) -> list[Params]:
        asked = [(i, name) for i, call in enumerate(calls) for name, v in call.theta.items() if v.requires_grad]
        leaves, losses = [calls[i].theta[name] for i, name in asked], [call.loss for call in calls]
        slopes = torch.autograd.grad(losses, leaves, retain_graph=self.retain_graph, allow_unused=True)
        found: list[Params] = [{} for _ in calls]
        for (i, name), slope in zip(asked, slopes, strict=True):
            if slope is not None:
                found[i][name] = slope
        return found


def gradient_of(loss: Callable[[Params, Batch], Tensor]) -> Gradient:
    return lambda theta, batch: gradients(loss(theta, batch), theta)


def optimise(
    gradient: Gradient,
    theta: Params,
    data: Samples,
    local: LocalTraining,
    round_: int,
    rng: torch.Generator,
    fixed: Collection[str] = (),
    velocity: Params | None = None,
    steps: Steps | None = None,
) -> Params:
    """Where an optimiser gets to from theta, which stays as it was, by a gradient over a client's batches. `velocity`
    is sgd's momentum to begin with, and holds the last one afterwards."""
    now = {name: value.detach().clone().requires_grad_(name not in fixed) for name, value in theta.items()}
    optimiser = Optimiser(local, now, velocity)
    for epoch in range(local.epochs):
        rate = local.rate(round_, epoch)
        for grads in (steps or plain_steps)(gradient, now, data, local.batch, local.drop_last, rng):
            optimiser.step(clipped(grads, local.clip) if local.clip else grads, rate)
    if velocity is not None:
        velocity |= {name: buffer for name, buffer in optimiser.velocity.items() if buffer is not None}
    found = {name: value.detach() for name, value in now.items()}
    if steps is not None:
        steps.arrived(found)
    return found


def plain_steps(
    gradient: Gradient, theta: Params, data: Samples, size: int, drop_last: bool, rng: torch.Generator
) -> Iterator[Params]:
    for batch in data.batches(size, drop_last, rng):
        yield gradient(theta, batch)


def clipped(grads: Params, most: float) -> Params:
    """Scaled down where their common norm is larger."""
    norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(g) for g in grads.values()]))
    factor = (most / (norm + 1e-6)).clamp(max=1.0)
    return {name: g * factor for name, g in grads.items()}
