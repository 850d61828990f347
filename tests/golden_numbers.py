"""The authors' numbers (tests/golden/README.md) and the small CLIP that they were computed on."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fedtailor.clip.layouts import from_openai, shape_from_openai
from fedtailor.clip.load import fill
from fedtailor.clip.model import Clip
from fedtailor.core.method import Method
from fedtailor.core.model import Model, Tuner, Words
from fedtailor.core.optim import LocalTraining
from fedtailor.core.types import Batch, Params
from torch_optimisers import torch_optimiser

GOLDEN = Path(__file__).parent / "golden"
SOS, EOT = 598, 599
LOGITS, GRADIENT = 2e-4, 1e-4  # recommended tolerances: absolute, and of the tensor's norm


@cache
def golden(name: str) -> dict[str, Tensor]:
    with np.load(GOLDEN / f"{name}.npz") as file:
        return {key: torch.from_numpy(file[key]) for key in file.files}


@cache
def golden_clip() -> Clip:
    state = {key: value.float() for key, value in golden("weights").items()}
    clip = Clip(shape_from_openai(state, folder=GOLDEN))
    fill(clip, from_openai(state), "weights.npz")
    return clip.freeze()


@cache
def golden_words() -> Words:
    inputs = golden("inputs")

    def sentences(variant: str, skip: int) -> tuple[tuple[int, ...], ...]:
        return tuple(tuple(row[1 + skip : row.argmax()].tolist()) for row in inputs[f"tokens.{variant}"])

    names = tuple(row[:-1] for row in sentences("X4", 4))  # without the context and the period
    return Words(names, sentences("photo", 0), period=sentences("X4", 4)[0][-1:], sos=SOS, eot=EOT)


class GoldenCase:
    """A tuner on the golden batch of six images."""

    def __init__(self, tuner: Tuner) -> None:
        inputs, clip = golden("inputs"), golden_clip()
        self.model = Model(clip, tuner, golden_words())
        self.labels = inputs["labels"].long()
        self.x = clip.vision(inputs["images"].float(), "pixels", self.model.stage)

    @property
    def batch(self) -> Batch:
        return Batch(self.x, self.labels, torch.arange(len(self.x)))

    def logits(self, theta: Params) -> Tensor:
        return self.model.logits(theta, self.x)

    def gradients(self, theta: Params, prior: Tensor | None = None) -> tuple[Tensor, Params]:
        leaves = {n: v.clone().requires_grad_() for n, v in theta.items()}
        logits = self.logits(leaves) if prior is None else self.logits(leaves) + prior.log()
        loss = F.cross_entropy(logits, self.labels)
        return loss.detach(), dict(zip(leaves, torch.autograd.grad(loss, list(leaves.values())), strict=True))


def close(ours: Tensor, theirs: Tensor) -> None:
    """Logits, features and losses."""
    torch.testing.assert_close(ours, theirs.to(ours.dtype), atol=LOGITS, rtol=0)


def close_gradient(ours: Tensor, theirs: Tensor) -> None:
    assert theirs.norm() > 0
    assert (ours - theirs).norm() <= GRADIENT * theirs.norm()


def follow(case: GoldenCase, method: Method, theta: Params, steps: int = 2) -> Iterator[tuple[Params, Params]]:
    """The gradient on the golden batch, and the parameters after a step along it with the family's SGD; twice."""
    now = {name: value.clone().requires_grad_() for name, value in theta.items()}
    optimiser, gradient = torch_optimiser(LocalTraining(), list(now.values())), method.gradient(case.model, theta)
    for _ in range(steps):
        grads = gradient(now, case.batch)
        for name, value in now.items():
            value.grad = grads[name]
        optimiser.step()
        yield grads, {name: value.detach().clone() for name, value in now.items()}
