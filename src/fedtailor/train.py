"""The round loop: cohort, the method's round, tests, one record. It knows no method and no engine."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from .core import Server
from .engines.local import LocalEngine
from .evaluate import score_clients, score_shared
from .metrics import Score, mean_score
from .rng import generator
from .setup import Setup
from .store import Store


@dataclass(frozen=True)
class Record:
    """One round. Scores are None in rounds that are not tested."""

    round: int  # counted from 1: after so many rounds
    cohort: list[int]
    shared: Score | None
    personal: Score | None
    clients: tuple[float | None, ...]  # each client's overall
    bytes_up: int
    bytes_down: int
    seconds: float
    peak_rss_mb: float

    def row(self) -> dict[str, Any]:
        scores = {
            name: None if score is None else {**score.summary(), "per_class": list(score.per_class)}
            for name, score in (("global", self.shared), ("personal", self.personal))
        }
        rest = {k: v for k, v in vars(self).items() if k not in {"shared", "personal"}}
        return {**rest, "clients": list(self.clients), **scores}  # lists, as they come back from a file


def peak_rss_mb() -> float:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1 << 20 if sys.platform == "darwin" else 1 << 10)  # bytes there, kilobytes elsewhere


def train(setup: Setup, store: Store | None = None, resume: bool = False) -> Iterator[Record]:
    """Run the rounds that are left, one record each. With a store, each is kept before it is given out."""
    run, job = setup.run, setup.job
    server, engine = job.first_server(), None
    if store and resume:
        saved = store.resume()
        if saved:
            server, engine = saved[0], setup.engine(saved[1])
    engine = engine or setup.engine()
    if store and server.round == 0:
        store.checkpoint(server, engine.clients, ())
    while server.round < run.rounds:
        t, began = server.round, time.perf_counter()
        cohort = job.method.cohort(t, run.clients, run.fraction, generator(run.seed, "cohort", t))
        engine.visits.clear()
        server = replace(job.method.round(server, cohort, engine), round=t + 1)
        record = test(setup, server, engine, cohort, began)
        if store:
            store.save_round(record.row(), engine.visits)
            store.checkpoint(server, engine.clients, [v.client for v in engine.visits])
        yield record


def test(setup: Setup, server: Server, engine: LocalEngine, cohort: list[int], began: float) -> Record:
    run, job = setup.run, setup.job
    shared = personal = None
    clients: list[Score] = []
    if server.round % run.every == 0 or server.round == run.rounds:
        shared = score_shared(job, server, setup.tests)
        clients = score_clients(job, server, engine.clients, setup.tests)
        personal = mean_score(clients)
    return Record(
        round=server.round,
        cohort=cohort,
        shared=shared,
        personal=personal,
        clients=tuple(score.overall for score in clients),
        bytes_up=sum(v.bytes_up for v in engine.visits),
        bytes_down=sum(v.bytes_down for v in engine.visits),
        seconds=round(time.perf_counter() - began, 4),
        peak_rss_mb=round(peak_rss_mb(), 1),
    )
