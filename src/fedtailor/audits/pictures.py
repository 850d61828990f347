"""Gradient inversion: pictures whose gradient is the one that left.

Geiping et al., Inverting Gradients – How Easy Is It to Break Privacy in Federated Learning?, NeurIPS 2020, after Zhu
et al., Deep Leakage from Gradients, NeurIPS 2019.
Notation: x* → original, x → guess, ∇L(x*, y) → seen, α → smooth. Objective: 1 − cos(∇L(x, y), ∇L(x*, y)) + α TV(x), by
Adam on the signs of its gradient, with values held to 0 to 1. The attacker knows method, model, the parameters sent
down, the pictures' classes, and the seed, so also what dropout left out; not what a client keeps.
Departures: the start is grey with a little noise, and the rate is smaller.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from ..base.progress import ProgressFn
from ..base.rng import generator
from ..data.dataset import Indices
from .base import Audit, Finding, Plan, Row, rounded, seconds_of
from .case import Case
from .drawing import side_by_side
from .likeness import psnr, ssim
from .one_step import OneStep, one_step, weak_replay

DROPS = 3 / 8, 5 / 8, 7 / 8  # of the steps, after each of which the rate is a tenth
SHOWN = 8  # pictures in the figure
LIKE = ("psnr", "ssim", "cosine")


class Pictures(Audit):
    idea: ClassVar[str] = "pictures, from the update of one step (gradient inversion)"

    steps: int = Field(600, ge=1, le=1_000_000, description="of the search for a picture")
    pictures: int = Field(1, ge=1, le=64, description="in the client's step, each of another class")
    tries: int = Field(4, ge=1, description="clients, a step of each")
    rate: float = Field(0.02, gt=0)
    smooth: float = Field(0.2, ge=0, title="α", description="weight of the total variation")

    def plan(self, case: Case) -> Plan:
        who = case.who[: self.tries]
        search = Search(case, one_step(case, who[0], self.pictures), self)
        took = seconds_of(lambda: search.run(1, ignore)) * self.steps * len(who)
        return Plan(
            f"look for the pictures of one step, in {self.steps} steps of search, at {len(who)} client(s)", took
        )

    def __call__(self, case: Case, progress: ProgressFn) -> Finding:
        tries, shown = list[Row](), list[tuple[Tensor, ...]]()
        for search, guess, match in self.searches(case, progress):
            tries += [{**row, "match": match} for row in search.judged(guess)]
            shown += search.beside(guess)
        figure = side_by_side(("original", "recovered", "another one"), shown[:SHOWN])
        return Finding(summary(tries), told(tries), [rounded(row) for row in tries], {"pictures.png": figure})

    def searches(self, case: Case, progress: ProgressFn) -> Iterator[tuple[Search, Tensor, float]]:
        """Of each client, with the pictures found and how well their gradient matches."""
        who = case.who[: self.tries]
        for done, k in enumerate(who):

            def on_step(step: int, before: int = done * self.steps) -> None:
                progress("looking for pictures", before + step, len(who) * self.steps)

            search = Search(case, one_step(case, k, self.pictures), self)
            yield search, *search.run(self.steps, on_step)


@dataclass(frozen=True)
class Search:
    case: Case
    step: OneStep
    how: Pictures

    @cached_property
    def scale(self) -> tuple[Tensor, Tensor]:
        """Mean and deviation by which pictures are normalised."""
        given = self.case.experiment.transform
        put = self.case.job.model.put
        return put(torch.tensor(given.mean)[:, None, None]), put(torch.tensor(given.std)[:, None, None])

    def normalised(self, pictures: Tensor) -> Tensor:
        mean, std = self.scale
        return (pictures - mean) / std

    def read(self, places: Indices) -> Tensor:
        """(B, 3, S, S) training pictures as CLIP sees them, from 0 to 1."""
        mean, std = self.scale
        return (self.case.seen(places) * std + mean).clamp(0, 1)

    @property
    def start(self) -> Tensor:
        """Grey, with a little noise."""
        seed = self.case.experiment.run.seed, "audit", "start", self.step.client
        size = self.case.experiment.transform.size
        noise = torch.rand(len(self.step.pictures), 3, size, size, generator=generator(*seed))
        return self.case.job.model.put(0.4 + 0.2 * noise)

    def run(self, steps: int, on_step: Callable[[int], None]) -> tuple[Tensor, float]:
        """The pictures found, and how well their gradient matches, as a cosine."""
        guess = self.start.requires_grad_(True)
        adam = torch.optim.Adam([guess], self.how.rate)
        falling = torch.optim.lr_scheduler.MultiStepLR(adam, [int(part * steps) for part in DROPS], 0.1)
        for step in range(steps):
            match = self.match(guess)
            (slope,) = torch.autograd.grad(1 - match + self.how.smooth * variation(guess), [guess])
            guess.grad = slope.sign()
            adam.step()
            falling.step()
            with torch.no_grad():
                guess.clamp_(0, 1)
            on_step(step + 1)
        return guess.detach(), float(self.match(guess).detach())

    def match(self, guess: Tensor) -> Tensor:
        return F.cosine_similarity(self.step.replay.pictured(self.normalised(guess)), self.step.seen, dim=0)

    def features(self, pictures: Tensor) -> Tensor:
        return self.case.features(self.normalised(pictures))

    def like(self, a: Tensor, b: Tensor) -> dict[str, Tensor]:
        cosine = (self.features(a) * self.features(b)).sum(1)
        return {"psnr": psnr(a, b), "ssim": ssim(a, b), "cosine": cosine}

    def judged(self, guess: Tensor) -> list[Row]:
        """Of each picture: how like the original the guess is, how like it others of its class are, and how many of
        these CLIP finds more like the guess than the original."""
        rows = []
        for place, found, grey in zip(self.step.pictures.tolist(), guess, self.start, strict=True):
            original, others = self.read(np.array([place])), self.case.others(place)
            row: Row = {"client": self.case.name_of(self.step.client), "picture": place}
            row["class"] = self.case.experiment.federation.class_names[self.case.labels[place]]
            row |= {name: float(value) for name, value in self.like(found[None], original).items()}
            row |= {f"start {name}": float(value) for name, value in self.like(grey[None], original).items()}
            row |= {f"other {name}": None for name in LIKE} | {"others": len(others), "nearer": 0}
            if len(others):
                pool = self.read(others)
                each = self.like(pool, original.expand_as(pool))
                row |= {f"other {name}": float(value.mean()) for name, value in each.items()}
                row["nearer"] = int((self.features(pool) @ self.features(found[None])[0] > row["cosine"]).sum())
            rows.append({**row, "agreement": self.step.agreement})
        return rows

    def beside(self, guess: Tensor) -> list[tuple[Tensor, ...]]:
        others = [self.case.others(place)[:1] for place in self.step.pictures.tolist()]
        return [
            (self.read(np.array([place]))[0], found, *self.read(other))
            for place, found, other in zip(self.step.pictures.tolist(), guess, others, strict=True)
        ]


def ignore(step: int) -> None:
    pass


def variation(pictures: Tensor) -> Tensor:
    """TV, a pixel."""
    across, down = pictures.diff(dim=-1).abs().mean(), pictures.diff(dim=-2).abs().mean()
    return across + down


def summary(tries: list[Row]) -> list[Row]:
    def row(what: str, prefix: str) -> Row:
        there = {name: [it[prefix + name] for it in tries if it[prefix + name] is not None] for name in LIKE}
        return {"": what, **{name: fmean(values) if values else None for name, values in there.items()}}

    return [row("recovered", ""), row("another picture of its class", "other "), row("the search's start", "start ")]


def told(tries: list[Row]) -> list[str]:
    compared = [row for row in tries if row["others"]]
    first, chance = sum(not row["nearer"] for row in compared), sum(1 / (1 + row["others"]) for row in compared)
    return [
        f"CLIP finds the original again among others of its class by {first} of {len(compared)} recovered pictures; "
        f"by chance it would be {chance:.1f}.",
        f"The update found matches the one that left to a cosine of {fmean(row['match'] for row in tries):.3f}.",
        *weak_replay(fmean(row["agreement"] for row in tries)),
    ]
