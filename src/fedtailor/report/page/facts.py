"""What a page is made from: all that is on record of one run. Whoever reads run folders makes these."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...evaluation.metrics import METRICS
from ..figures.record import PARTS, Classes, RunRecord, classes_of
from ..notes import notes

Counts = NDArray[np.int64]
Score = Mapping[str, Any]
ZERO_SHOT = {"global": "zero_shot", "personal": "zero_shot_personal"}  # in result.json


class Answered(NamedTuple):
    """The last test, counted."""

    confusion: Mapping[str, Counts]  # by part: (C, C) pictures, what they are by what they were said to be
    tested: Counts  # (K,) pictures of each client
    shared: Sequence[float | None]  # (K,) percent of them that the shared model knows; empty if there is none


class WorstCase(NamedTuple):
    """A picture that was taken for something else."""

    picture: bytes  # PNG
    truth: str
    said: str
    confidence: float


class Worst(NamedTuple):
    cases: Sequence[WorstCase]
    about: str  # which these are, in a sentence


@dataclass(frozen=True, eq=False)
class PageRun:
    record: RunRecord
    about: Mapping[str, Any]  # of run.toml: versions and hashes
    result: Mapping[str, Any] | None = None  # result.json; None: the run is not finished
    answered: Answered | None = None
    running: bool = False  # some process is at it
    worst: Worst | None = None
    within: Path = Path()  # of several runs, where all of them are

    @property
    def name(self) -> str:
        folder = self.record.folder
        return str(folder.relative_to(self.within) if folder.is_relative_to(self.within) else folder)

    @property
    def title(self) -> str:
        return f"{self.record.method} on {self.record.settings['data.name']}"

    @property
    def done(self) -> int:
        """The last round that is on record."""
        return int(self.record.rounds[-1]["round"]) if self.record.rounds else 0

    @property
    def status(self) -> str:
        if self.result is not None:
            return "finished"
        return (
            f"{'running' if self.running else 'not finished'}: {self.done} of {self.record.settings['rounds']} rounds"
        )

    @property
    def last(self) -> Mapping[str, Any] | None:
        """The last round that was tested."""
        return self.record.tested[-1] if self.record.tested else None

    def before(self, part: str) -> Score:
        """Zero-shot CLIP; empty where nobody noted it."""
        if self.result is not None:
            return dict(self.result[ZERO_SHOT[part]])
        theirs = self.last and self.last["untuned"]  # as remote clients found it
        return dict(theirs or self.record.data.get("zero_shot", {}).get(part, {}))

    def after(self, part: str) -> Score:
        """The tuned model, as last tested; empty before its first test."""
        if self.result is not None:
            return dict(self.result[part])
        return dict(self.last[part]) if self.last else {}

    def per_class(self, part: str) -> tuple[Score, Score]:
        """Zero-shot and tuned, by name; empty where nobody knows."""
        return self.record.zero_shot(part, "per_class") or {}, self.last[part]["per_class"] if self.last else {}

    @cached_property
    def classes(self) -> Classes:
        return classes_of(self.record)

    @property
    def notes(self) -> list[str]:
        """What a reader should know of the numbers."""
        settings, noted = self.record.settings, str(self.about.get("notes", ""))
        summary = self.result or {"notes": noted.split(" · ") if noted else []}
        told = notes(summary, settings.get("data.server") == "test", settings.get("data.validation", 0))
        if self.result is None:
            told.insert(0, f"This run is {self.status}; numbers are those of its last test.")
        if broken := self.record.data.get("broken"):
            told.append(f"{broken} picture(s) could not be read and were left out")
        if lost := sum(len(row["dropped"]) for row in self.record.rounds):
            told.append(f"{lost} answer(s) of clients were late, lost or wrong, and do not count")
        return told

    def metrics(self) -> list[str]:
        """Those that some score has: without a tail there is no number for it."""
        scores = [score for part in PARTS for score in (self.before(part), self.after(part))]
        return [name for name in METRICS if any(score.get(name) is not None for score in scores)]


@dataclass(frozen=True, eq=False)
class Page:
    """One run, or several side by side."""

    runs: Sequence[PageRun]
    comparison: Mapping[str, Any] | None = None  # a table.json
    title: str = ""
    notes: Sequence[str] = field(default=())
