"""What a site has done for servers so far: orders by run and by day, and what it released of its pictures' privacy.

The site counts by itself, across runs and servers, and keeps the counts in a file, written before a reply leaves. A
request that is sent again counts again.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

from pydantic import BaseModel, ConfigDict, NonNegativeInt, ValidationError

from ..base.errors import UserError, explain
from ..base.files import write_atomic
from ..privacy.ledger import KINDS, of_releases


class Counts(BaseModel):
    model_config = ConfigDict(extra="forbid")
    day: str = ""
    today: NonNegativeInt = 0  # orders of that day
    runs: dict[str, NonNegativeInt] = {}  # run → orders
    # kind → noise in units of the longest update → releases. Noise of 0: without any.
    released: dict[str, dict[float, NonNegativeInt]] = {kind: {} for kind in KINDS}


class Spending:
    def __init__(self, file: Path) -> None:
        self.file = file
        try:
            self.counts = Counts.model_validate_json(file.read_bytes()) if file.is_file() else Counts()
        except ValidationError as error:
            raise UserError(
                f"{file}, which counts what this site has done and released, is damaged ({explain(error, got=False)}); "
                "put it back from a backup, or take it away to count from nothing"
            ) from error
        self.saved = self.counts.model_copy(deep=True)

    def order(self, run: str) -> None:
        """One more."""
        counts, day = self.counts, f"{datetime.now(UTC):%Y-%m-%d}"
        counts.today = 1 + (counts.today if counts.day == day else 0)
        counts.day = day
        counts.runs[run] = counts.runs.get(run, 0) + 1

    def orders_today(self) -> int:
        return self.counts.today if self.counts.day == f"{datetime.now(UTC):%Y-%m-%d}" else 0

    def orders_of(self, run: str) -> int:
        return self.counts.runs.get(run, 0)

    def release(self, kinds: Iterable[str], noise: dict[str, float]) -> None:
        for kind in kinds:
            held = self.counts.released[kind]
            held[noise[kind]] = held.get(noise[kind], 0) + 1

    def epsilon(self, kind: str, delta: float, more: float | None = None) -> float:
        """Of all releases so far, and one more of so much noise. Gaussian mechanisms of sensitivity 2 and deviations
        σ_i are together one of deviation (Σ 1/σ_i²)^-½."""
        releases = [*self.counts.released[kind].items(), *([] if more is None else [(more, 1)])]
        if not releases:
            return 0.0
        least = min(noise for noise, _ in releases)
        together = least and 1 / math.sqrt(math.fsum(times / noise**2 for noise, times in releases))
        return of_releases(together, 1, delta)

    def save(self) -> None:
        if self.counts != self.saved:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(self.file, json.dumps(self.counts.model_dump(mode="json"), indent=1).encode())
            self.saved = self.counts.model_copy(deep=True)
