"""Who is told how a run or a comparison goes. Without torch, so that a progress display need not wait for it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..evaluation.metrics import Score
    from ..simulation.build import Experiment
    from ..simulation.loop import RoundRecord
    from .result import Result


class Callback:
    """Told how a run goes on; this one does nothing with it."""

    def on_folder(self, folder: Path | None) -> None:
        """Nothing has begun yet. The run will be kept in this folder, which may be new, or (None) not be kept."""

    def on_progress(self, what: str, done: int, total: int) -> None:
        """So much of a piece of work is done."""

    def on_start(self, experiment: Experiment, zero_shot: Score, done: int) -> None:
        """All is prepared; this is where CLIP stands before any training. Of a resumed run so many rounds are done."""

    def on_round(self, record: RoundRecord, rounds: int) -> None:
        """A round is over, of so many."""

    def on_end(self, result: Result | None) -> None:
        """The run is over, or (None) was stopped before its end."""


class Together(Callback):
    """Several, told one after the other."""

    def __init__(self, *callbacks: Callback) -> None:
        self.callbacks = callbacks

    def on_folder(self, folder: Path | None) -> None:
        for it in self.callbacks:
            it.on_folder(folder)

    def on_progress(self, what: str, done: int, total: int) -> None:
        for it in self.callbacks:
            it.on_progress(what, done, total)

    def on_start(self, experiment: Experiment, zero_shot: Score, done: int) -> None:
        for it in self.callbacks:
            it.on_start(experiment, zero_shot, done)

    def on_round(self, record: RoundRecord, rounds: int) -> None:
        for it in self.callbacks:
            it.on_round(record, rounds)

    def on_end(self, result: Result | None) -> None:
        for it in self.callbacks:
            it.on_end(result)


class ComparisonCallback(Callback):
    """Hears what happens in each run, and which run is next."""

    def on_run(self, title: str, seed: int, done: int, total: int) -> None:
        """`done` of `total` runs are over; this one is next."""
