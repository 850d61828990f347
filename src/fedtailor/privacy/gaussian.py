"""Gaussian: what a client changes is clipped to a length, and normal noise is added, before it leaves.

McMahan et al., Learning Differentially Private Recurrent Language Models, ICLR 2018 (clients as the unit); counts, such
as label histograms and votes, are clipped and blurred by themselves, with a budget of their own.
Notation: C → clip, σ → noise, (ε, δ) → epsilon, delta.
Departures: replies all weigh the same, as a weight would tell how many pictures a client has.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Literal

from pydantic import Field
from torch import Tensor

from ..base.errors import UserError
from ..core.types import Params, Reply
from .base import Leaving, PrivacyStep


class Gaussian(PrivacyStep):
    """updates are clipped and blurred, with (ε, δ) told for each round"""

    clip: float = Field(0.1, gt=0, allow_inf_nan=False, title="C", description="longest update of a client")
    noise: float = Field(1.0, ge=0, allow_inf_nan=False, title="σ", description="standard deviation, in units of C")
    against: Literal["server", "others"] = Field(
        "server",
        description="whom it is kept from: the server too (each client adds all of the noise), or all but the server "
        "(the cohort adds it together)",
    )
    counts_clip: float = Field(100.0, gt=0, allow_inf_nan=False, description="longest histogram or vote of a client")
    counts_noise: float = Field(1.0, ge=0, allow_inf_nan=False, description="its standard deviation, in that unit")
    delta: float = Field(1e-5, gt=0, lt=1, title="δ")
    epsilon: float = Field(
        0.0, ge=0, allow_inf_nan=False, title="ε", description="stop before updates exceed it; 0: never"
    )
    counts_epsilon: float = Field(0.0, ge=0, allow_inf_nan=False, description="the same for histograms and votes")

    def __call__(self, reply: Reply, at: Leaving) -> Reply:
        if lacking := sorted(set(at.forms) - set(reply.stats)) if reply.stats else []:
            raise UserError(
                f"which statistics a client leaves out ({lacking[0]} …) would tell of its pictures; "
                "privacy=gaussian is for methods whose clients all send the same"
            )
        counted = {n: v.double() for n, v in reply.stats.items() if at.forms[n].counts}
        change = {n: v.double() - at.start[n].double() for n, v in reply.params.items()}
        change |= {STATISTIC + n: v.double() for n, v in reply.stats.items() if n not in counted}
        share = 1.0 if self.against == "server" else 1 / math.sqrt(at.cohort)
        change = blurred(change, self.clip, self.noise * share, at.noise)
        counted = blurred(counted, self.counts_clip, self.counts_noise * share, at.noise)
        params = {n: (at.start[n].double() + change[n]).to(v.dtype) for n, v in reply.params.items()}
        told = {n: change[STATISTIC + n] for n in reply.stats if n not in counted}
        told |= {n: v.round().clamp(0, at.samples) for n, v in counted.items()}  # in its range again
        return replace(reply, params=params, stats={n: told[n].to(v.dtype) for n, v in reply.stats.items()}, weight=1.0)


STATISTIC = "statistic:"  # before its name, beside changes of parameters


def blurred(values: Params, clip: float, noise: float, draw: Callable[[Tensor], Tensor]) -> Params:
    """Together no longer than `clip`, with noise of standard deviation noise · clip."""
    length = math.sqrt(sum(float(value.square().sum()) for value in values.values()))
    factor = min(1.0, clip / length) if length else 1.0
    return {n: factor * value + noise * clip * draw(value) for n, value in sorted(values.items())}
