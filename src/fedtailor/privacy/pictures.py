"""DP-SGD: in every step of a client's training each picture's gradient is clipped, and noise is added to their sum.

Abadi et al., Deep Learning with Differential Privacy, CCS 2016, Algorithm 1.
Notation: L → size, q = L/N → rate, C → clip, σ → noise, ḡ_t(x_i) → one, g̃_t → what is given to the optimiser.
Departures: none. Which pictures a step has is drawn from the client's secret, as its noise is: each picture by itself
(Poisson), so that a batch has L of them on average. Gradients are computed picture by picture, since attention on a
CPU has no batching rule for them.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from ..base.errors import UserError
from ..core.types import Batch, Params, Samples, Steps
from .base import bounded, noisy
from .noise import Noise


@dataclass
class PictureSteps(Steps):
    clip: float
    noise: float
    pictures: int  # N that the client has
    draw: Noise
    reached: Params | None = None

    def __call__(
        self,
        gradient: Callable[[Params, Batch], Params],
        theta: Params,
        data: Samples,
        size: int,
        drop_last: bool,
        rng: torch.Generator,
    ) -> Iterator[Params]:
        rate, expected = rate_of(self.pictures, size), rate_of(self.pictures, size) * len(data)

        def of(i: int, seed: int) -> Params:
            # A generator for each picture: no draw of one may depend on which others are there.
            found = gradient(theta, data.some(torch.tensor([i]), torch.Generator().manual_seed(seed)))
            return {name: value.detach().cpu().double() for name, value in found.items()}

        if len(data) == 0:
            return
        nothing = {name: torch.zeros_like(value) for name, value in of(0, 0).items()}
        for _ in range(steps_of(self.pictures, size, drop_last)):
            seeds = torch.randint(1 << 62, (len(data),), generator=rng).tolist()
            total = dict(nothing)
            for i in (self.draw.uniform(len(data)) < rate).nonzero()[0].tolist():
                one = bounded(of(i, seeds[i]), self.clip)
                total = {name: value + one[name] for name, value in total.items()}
            total = noisy(total, self.noise * self.clip, self.draw)
            yield {name: (value / expected).to(theta[name]) for name, value in total.items()}

    def arrived(self, theta: Params) -> None:
        if self.reached is not None:
            raise UserError("a pass trains once with privacy.unit=picture, as the budget counts it; this one did twice")
        self.reached = theta


def rate_of(pictures: int, size: int) -> float:
    """q: how likely a picture is in a step's batch."""
    return min(1.0, size / pictures) if pictures else 0.0


def steps_of(pictures: int, size: int, drop_last: bool) -> int:
    """In an epoch; as many as there are batches without privacy."""
    if not pictures:
        return 0
    return max(1, pictures // size) if drop_last else math.ceil(pictures / size)
