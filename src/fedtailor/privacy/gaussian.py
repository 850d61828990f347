"""Gaussian: what a client changes is clipped to a length, and normal noise is added, before it leaves.

McMahan et al., Learning Differentially Private Recurrent Language Models, ICLR 2018 (clients as the unit). With
pictures as the unit, the gradient of each is clipped instead, and noise added in every step (pictures.py). Counts, such
as label histograms and votes, are blurred by themselves, with a budget of their own.
Notation: C → clip, σ → noise, (ε, δ) → epsilon, delta.
Departures: replies all weigh the same, as a weight would tell how many pictures a client has.
"""

import math
from dataclasses import replace
from typing import Literal

import torch
from pydantic import Field

from ..base.errors import UserError
from ..core.types import Params, Reply, Steps
from .base import Leaving, PrivacyStep, bounded, noisy
from .noise import Noise
from .pictures import PictureSteps


class Gaussian(PrivacyStep):
    """updates are clipped and blurred, with (ε, δ) told for each round"""

    unit: Literal["client", "picture"] = Field("client", description="what is hidden: all of a client, or a picture")
    clip: float = Field(
        0.1, gt=0, allow_inf_nan=False, title="C", description="longest update of a client, or gradient of a picture"
    )
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

    def steps(self, pictures: int, noise: Noise) -> Steps | None:
        return PictureSteps(self.clip, self.noise, pictures, noise) if self.unit == "picture" else None

    def __call__(self, reply: Reply, at: Leaving) -> Reply:
        if lacking := sorted(set(at.forms) - set(reply.stats)) if reply.stats else []:
            raise UserError(
                f"which statistics a client leaves out ({lacking[0]} …) would tell of its pictures; "
                "privacy=gaussian is for methods whose clients all send the same"
            )
        counted = {n: v.double() for n, v in reply.stats.items() if at.forms[n].counts}
        if self.unit == "picture":
            check_reached(reply, at)
            found = noisy(counted, self.counts_noise * math.sqrt(len(counted)), at.noise)  # a picture adds 1 to each
            return replace(reply, stats=in_range(found, reply, at))
        change = {n: v.double() - at.start[n].double() for n, v in reply.params.items()}
        change |= {STATISTIC + n: v.double() for n, v in reply.stats.items() if n not in counted}
        share = 1.0 if self.against == "server" else 1 / math.sqrt(at.cohort)
        change = noisy(bounded(change, self.clip), self.noise * share * self.clip, at.noise)
        counted = noisy(bounded(counted, self.counts_clip), self.counts_noise * share * self.counts_clip, at.noise)
        params = {n: (at.start[n].double() + change[n]).to(v.dtype) for n, v in reply.params.items()}
        told = {n: change[STATISTIC + n].to(v.dtype) for n, v in reply.stats.items() if n not in counted}
        return replace(reply, params=params, stats=told | in_range(counted, reply, at), weight=1.0)


STATISTIC = "statistic:"  # before its name, beside changes of parameters


def in_range(counted: Params, reply: Reply, at: Leaving) -> Params:
    """Whole numbers, none below 0 or above what the client has: as counts are."""
    return {n: v.round().clamp(0, at.samples).to(reply.stats[n].dtype) for n, v in counted.items()}


def check_reached(reply: Reply, at: Leaving) -> None:
    """Whatever a method says of itself: nothing of single pictures leaves but through steps with noise, and counts."""
    for name, form in at.forms.items():
        if name in reply.stats and not form.counts:
            raise UserError(f"{name} does not count pictures, and with privacy.unit=picture only counts are sent")
    for name, value in reply.params.items():
        if not any(torch.equal(value, there[name]) for there in (at.reached or {}, at.start) if name in there):
            raise UserError(f"{name} was not trained picture by picture, as privacy.unit=picture needs it")
