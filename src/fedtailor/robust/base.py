"""What is done to a round's replies before a method sees them, so that a few bad clients do not decide what it learns.

A robust step changes or drops replies; whatever the method then does with them (average them, in clusters or class by
class) it does with replies that are in proportion to each other. So it goes with any method, and needs no change there.
"""

import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from statistics import median

from pydantic import Field

from ..core.types import Options, Params, Reply

FEW = 3  # replies: of fewer, none can be called unlike the others


class Robust(Options):
    max_weight: float = Field(
        3.0, ge=1, allow_inf_nan=False, description="× the round's median weight: nobody counts for more"
    )

    def __call__(self, replies: Mapping[int, Reply], starts: Mapping[int, Params]) -> dict[int, Reply]:
        """The replies as the method shall see them, in client order; `starts`: what each client was sent."""
        order = sorted(replies)
        if len(order) < FEW:
            return {k: replies[k] for k in order}
        changed = self.changed({k: Changes.of(replies[k], starts[k]) for k in order})
        kept = {k: changed[k].reply(replies[k], starts[k]) for k in order if k in changed}
        return lightened(kept, self.max_weight)

    @abstractmethod
    def changed(self, changes: "dict[int, Changes]") -> "dict[int, Changes]":
        """In place of what clients have changed; who is missing here does not count."""


class Changes(Params):
    """What a client's reply adds: to each parameter it was sent, and as real-valued statistics. Counts are not here:
    their range is declared (core/statistics.py)."""

    @classmethod
    def of(cls, reply: Reply, start: Params) -> "Changes":
        stats = {STATISTIC + n: v.double() for n, v in reply.stats.items() if v.is_floating_point()}
        return cls({**{n: v.double() - start[n].double() for n, v in reply.params.items()}, **stats})

    def reply(self, reply: Reply, start: Params) -> Reply:
        """The client's reply with these changes instead of its own."""
        params = {n: (start[n].double() + self[n]).to(v.dtype) for n, v in reply.params.items()}
        stats = {n: self[STATISTIC + n].to(v.dtype) if v.is_floating_point() else v for n, v in reply.stats.items()}
        return replace(reply, params=params, stats=stats)


STATISTIC = "statistic:"  # before its name among changes


def length(values: Params) -> float:
    return math.sqrt(sum(float(value.double().square().sum()) for value in values.values()))


def typical(values: Mapping[int, float]) -> float:
    """The median of those that are not 0; infinite if there are too few to tell."""
    known = [value for value in values.values() if value > 0]
    return median(known) if len(known) >= FEW else math.inf


def lightened(replies: Mapping[int, Reply], times: float) -> dict[int, Reply]:
    """With no weight above so many times the typical one; 0: as they are."""
    most = times * typical({k: reply.weight for k, reply in replies.items()}) if times else math.inf
    return {k: replace(reply, weight=min(reply.weight, most)) for k, reply in replies.items()}
