"""A row of a table: one variant of one thing, and what it took."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Row:
    part: str
    case: str  # what is done
    variant: str  # in which way; the first variant of a case is what the others are compared with
    cpu_s: float | None = None
    wall_s: float | None = None
    peak_mb: float | None = None  # above what was there before it began
    gflop: float | None = None  # as counted, of products and attention
    of_peak: float | None = None  # gflop a CPU second, of what this machine's matrix product reaches in one thread
    ratio: float | None = None  # the first variant's CPU seconds ÷ this one's
    off: float | None = None  # how far its result is from the first variant's, relatively
    allowed: float | None = None  # and may be
    failure: str = ""  # what is wrong where no number tells
    more: dict[str, Any] = field(default_factory=dict)

    @property
    def wrong(self) -> bool:
        return bool(self.failure) or (
            self.off is not None and self.allowed is not None and not self.off <= self.allowed
        )

    @property
    def why(self) -> str:
        return self.failure or f"{self.off:.1e} off, {self.allowed:.0e} is allowed"

    def json(self) -> dict[str, Any]:
        return asdict(self)


def median(found: Sequence[dict[str, Any]], name: str) -> float:
    return float(statistics.median(each[name] for each in found))


def figures(found: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The medians that every row has."""
    return {name: median(found, name) for name in ("cpu_s", "wall_s", "peak_mb")}


def ratio(first: float, this: float) -> float | None:
    return first / this if this else None
