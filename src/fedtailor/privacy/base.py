"""A privacy mechanism: what leaves a client in place of its reply."""

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import Field
from torch import Tensor

from ..core.statistics import Forms
from ..core.types import Options, Params, Reply, Steps
from .noise import Noise, kept_secret, new_secret


@dataclass(frozen=True)
class Leaving:
    """What a mechanism may know of a reply that is about to leave."""

    start: Params  # what the server sent: an update is what is bounded, not a parameter
    forms: Forms  # of its statistics
    samples: int  # that the client has
    cohort: int  # how many clients a round has
    noise: Callable[[Tensor], Tensor]  # standard normal numbers in a tensor's shape, in float64
    reached: Params | None = None  # by the mechanism's own steps, where it has some


class PrivacyStep(Options):
    generator: Literal["secret", "seeded"] = Field(
        "secret", description="of noise: the client's own, or from the run's seed, for simulations to be repeated"
    )

    def secret(self, folder: Path | None) -> bytes:
        """What the noise of the clients of a place is made from, for as long as their states are in its folder."""
        if self.generator == "seeded":
            return b""
        return new_secret() if folder is None else kept_secret(folder)

    def steps(self, pictures: int, noise: Noise) -> Steps | None:
        """How a client with so many pictures trains; None: as ever."""
        return None

    @abstractmethod
    def __call__(self, reply: Reply, at: Leaving) -> Reply:
        """What leaves in place of a reply."""


def bounded(values: Params, most: float) -> Params:
    """Together no longer than `most`."""
    length = math.sqrt(sum(float(value.square().sum()) for value in values.values()))
    factor = min(1.0, most / length) if length else 1.0
    return {name: factor * value for name, value in values.items()}


def noisy(values: Params, deviation: float, draw: Callable[[Tensor], Tensor]) -> Params:
    return {name: value + deviation * draw(value) for name, value in sorted(values.items())}
