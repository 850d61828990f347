"""Local optimisation over a Params dict: torch's own optimisers, made anew for every client and round."""

import math
from collections.abc import Callable, Collection
from typing import Annotated, Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor

from .types import Batch, Options, Params, Samples

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

    def make(self, leaves: list[Tensor]) -> torch.optim.Optimizer:
        if self.optimiser == "sgd":
            return torch.optim.SGD(leaves, self.lr, self.momentum, 0, self.weight_decay, self.nesterov)
        kind = torch.optim.Adam if self.optimiser == "adam" else torch.optim.AdamW
        return kind(leaves, self.lr, self.betas, self.eps, self.weight_decay)


def gradients(loss: Tensor, theta: Params, retain_graph: bool = False) -> Params:
    """By name. A FIXED parameter has none, and neither has one that this loss does not reach (allow_unused)."""
    names = [name for name, value in theta.items() if value.requires_grad]
    found = torch.autograd.grad(loss, [theta[n] for n in names], retain_graph=retain_graph, allow_unused=True)
    return {name: g for name, g in zip(names, found, strict=True) if g is not None}


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
) -> Params:
    """Where an optimiser gets to from theta, which stays as it was, by a gradient over a client's batches. `velocity`
    is sgd's momentum to begin with, and holds the last one afterwards."""
    now = {name: value.detach().clone().requires_grad_(name not in fixed) for name, value in theta.items()}
    leaves = [value for value in now.values() if value.requires_grad]
    optimiser = local.make(leaves)
    for name, value in (velocity or {}).items():
        optimiser.state[now[name]]["momentum_buffer"] = value.clone().to(now[name].device)
    for epoch in range(local.epochs):
        for group in optimiser.param_groups:
            group["lr"] = local.rate(round_, epoch)
        for batch in data.batches(local.batch, local.drop_last, rng):
            grads = gradient(now, batch)
            for name, value in now.items():
                value.grad = grads.get(name)
            if local.clip:
                torch.nn.utils.clip_grad_norm_(leaves, local.clip)
            optimiser.step()
    if velocity is not None:
        buffers = {name: optimiser.state[value].get("momentum_buffer") for name, value in now.items()}
        velocity |= {name: buffer for name, buffer in buffers.items() if buffer is not None}
    return {name: value.detach() for name, value in now.items()}
