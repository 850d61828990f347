"""A privacy mechanism: what leaves a client in place of its reply."""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from pydantic import Field
from torch import Tensor

from ..core.statistics import Forms
from ..core.types import Options, Params, Reply


@dataclass(frozen=True)
class Leaving:
    """What a mechanism may know of a reply that is about to leave."""

    start: Params  # what the server sent: an update is what is bounded, not a parameter
    forms: Forms  # of its statistics
    samples: int  # that the client has
    cohort: int  # how many clients a round has
    noise: Callable[[Tensor], Tensor]  # standard normal numbers in a tensor's shape, in float64


class PrivacyStep(Options):
    generator: Literal["secret", "seeded"] = Field(
        "secret", description="of noise: the client's own, or from the run's seed, for simulations to be repeated"
    )

    @abstractmethod
    def __call__(self, reply: Reply, at: Leaving) -> Reply:
        """What leaves in place of a reply."""
