"""A round, its test and its checkpoint with K clients, of which eight take part: K must not be felt.

A federation without pictures (`federations.py`): every client has 16 training pictures, so that a cohort's work is the
same for any K, and the test set is 4,000 pictures whoever they belong to. PromptFL on the bundled CLIP. A cohort is
drawn as always, then the first eight are taken in its place, so that as many clients have a model of their own to be
tested at any K. The order of events is `execute.train`'s: the round, the test, the record, the checkpoint.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from fedtailor.core.method import Method
from fedtailor.core.types import Server
from fedtailor.runs.execute import about
from fedtailor.runs.folder import RunFolder
from fedtailor.simulation.build import Experiment
from fedtailor.simulation.engine import Engine, Evaluation, make_engine
from fedtailor.simulation.loop import rounds

from .federations import synthetic
from .measure import forget_peak, memory_mb
from .rows import median

COHORT, TRAIN, TESTS = 8, 16, 4000


@dataclass
class Clock:
    """CPU seconds since it was last asked."""

    began: float = field(default_factory=time.process_time)

    def lap(self) -> float:
        before, self.began = self.began, time.process_time()
        return self.began - before


def some_rounds(size: int, rounds_: int) -> dict[str, Any]:
    """Median CPU seconds of the parts of a round with `size` clients, and memory above what eight take."""
    go(synthetic("promptfl", COHORT, TRAIN, TESTS, rounds=2, every=1, fraction=1.0, threads=1))
    before, clock = forget_peak(), Clock()
    settings = {"rounds": 1 + rounds_, "every": 1, "fraction": min(1.0, (COHORT + 0.5) / size), "threads": 1}
    experiment = synthetic("promptfl", size, TRAIN, TESTS, **settings)
    built = clock.lap()
    wall = time.perf_counter()
    with the_same_eight():
        laps = go(experiment)[1:]  # the first sets things up
    wall = (time.perf_counter() - wall) / (1 + len(laps))
    parts = {name: median(laps, name) for name in ("round", "test", "checkpoint")}
    memory = {"peak_mb": max(0.0, memory_mb("VmHWM") - before), "kept_mb": memory_mb("VmRSS") - before}
    return {**parts, "build": built, "cpu_s": sum(parts.values()), "wall_s": wall, **memory}


@contextmanager
def the_same_eight() -> Iterator[None]:
    draw = Method.cohort

    def cohort(self: Method, t: int, clients: int, fraction: float, rng: torch.Generator) -> list[int]:
        return [at for at, _ in enumerate(draw(self, t, clients, fraction, rng))][:COHORT]

    with patch.object(Method, "cohort", cohort):
        yield


def go(experiment: Experiment) -> list[dict[str, float]]:
    """All rounds with a run folder, each part's CPU seconds."""
    with tempfile.TemporaryDirectory() as name:
        store = RunFolder.create(Path(name) / "run", experiment.run, about(experiment))
        try:
            return timed(experiment, make_engine(experiment, store.clients, store.folder), store)
        finally:
            store.close()


def timed(experiment: Experiment, engine: Engine, store: RunFolder) -> list[dict[str, float]]:
    laps, clock, testing = list[dict[str, float]](), Clock(), [0.0]
    evaluate = engine.evaluate

    def test(experiment: Experiment, server: Server) -> Evaluation:
        own = Clock()
        found = evaluate(experiment, server)
        testing[0] = own.lap()
        return found

    engine.evaluate = test  # type: ignore[method-assign]
    name_of = experiment.federation.name_of
    for finished in rounds(experiment, engine, experiment.job.first_server()):
        whole = clock.lap()
        store.save_round(finished.record.row(), [step.row(name_of(step.client)) for step in finished.steps])
        store.checkpoint(finished.server, engine.clients.changed)
        engine.committed()
        laps.append({"round": whole - testing[0], "test": testing[0], "checkpoint": clock.lap()})
    return laps
