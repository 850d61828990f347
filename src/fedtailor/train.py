"""The round loop: cohort, the method's round, tests, one record. It knows no method and no engine."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from .core import Server
from .diagnostics import Round, measure
from .engines.base import Engine, Shortfall, Visited
from .errors import UserError
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
    pseudo: dict[str, Any] | None  # how good pseudo-labels are; None where labels are given, or truths unknown
    diagnostics: dict[str, Any]  # by name, what the run is to record
    untuned: Score | None  # CLIP as it is on clients' own test pictures, where only they can tell
    dropped: dict[str, str]  # client: why it is out of this round

    def row(self) -> dict[str, Any]:
        scores = {
            name: None if score is None else {**score.summary(), "per_class": list(score.per_class)}
            for name, score in (("global", self.shared), ("personal", self.personal), ("untuned", self.untuned))
        }
        rest = {k: v for k, v in vars(self).items() if k not in {"shared", "personal", "untuned"}}
        return {**rest, "clients": list(self.clients), **scores}  # lists, as they come back from a file


def peak_rss_mb() -> float:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1 << 20 if sys.platform == "darwin" else 1 << 10)  # bytes there, kilobytes elsewhere


def train(setup: Setup, store: Store | None = None, resume: bool = False) -> Iterator[Record]:
    """Run the rounds that are left, one record each. With a store, each is kept before it is given out."""
    job = setup.job
    server, clients = job.first_server(), None
    if store and resume:
        saved = store.resume()
        if saved:
            server, clients = job.resumed(saved[0]), saved[1]
    engine = setup.engine(clients, store.folder if store else None)
    engine.traffic = [] if setup.run.record else None
    try:
        engine.open()
        if store and server.round == 0:
            store.checkpoint(server, engine.clients, ())
        while server.round < setup.rounds:
            began = time.perf_counter()
            before, clients = server, dict(engine.clients)
            server, cohort, visits = persist(setup, server, engine)
            record = test(Round(setup, before, server, clients, engine, cohort), visits, began)
            if store:
                store.save_round(record.row(), visits)
                store.checkpoint(server, engine.clients, [v.client for v in visits])
            engine.saved()
            yield record
    finally:
        engine.close()


def persist(setup: Setup, server: Server, engine: Engine) -> tuple[Server, list[int], list[Visited]]:
    """A round, made again from where it began if too few clients answer. Also: who was asked, and every visit."""
    clients, visits = dict(engine.clients), list[Visited]()
    tries = setup.run.plan.tries
    for _ in range(tries):
        if engine.traffic:
            engine.traffic.clear()
        try:
            after, cohort = advance(setup, server, engine)
            return after, cohort, visits + drained(engine)
        except Shortfall as short:
            engine.clients = dict(clients)
            visits += (these := drained(engine))
            told = "; ".join(f"client {v.client}: {v.dropped}" for v in these if v.dropped)
            last = f"round {server.round + 1}: {short}; {told}"
    raise UserError(f"{last}; tried {tries} times (plan.tries). Resume the run when more clients are there")


def drained(engine: Engine) -> list[Visited]:
    visits = list(engine.visits)
    engine.visits.clear()
    return visits


def advance(setup: Setup, server: Server, engine: Engine) -> tuple[Server, list[int]]:
    """One round: labels where they are due, then the method's round, or its closing one. Also: who was asked."""
    run, method, labeler, t = setup.run, setup.job.method, setup.job.labeler, server.round
    everyone = method.everyone(run.clients)
    if t >= run.rounds:
        engine.begin(everyone, len(everyone))
        return replace(method.close(server, everyone, engine), round=t + 1), everyone

    def draw(fraction: float) -> list[int]:
        return method.cohort(t, run.clients, fraction, generator(run.seed, "cohort", t))

    cohort = draw(min(1.0, run.fraction * (1 + engine.oversample)))
    engine.begin(cohort, len(draw(run.fraction)))
    if labeler is not None and labeler.due(t):
        server = labeler.label(server, everyone, engine)
        server = replace(server, state={**server.state, "labels.round": torch.tensor(t)})  # for methods that count them
    after = method.round(server, cohort, engine)
    if setup.server_step is not None:
        after = setup.server_step(server, after, method.made)
    return replace(after, round=t + 1), cohort


def test(seen: Round, visits: list[Visited], began: float) -> Record:
    setup, server, engine = seen.setup, seen.after, seen.engine
    shared = personal = None
    clients: list[Score] = []
    if server.round % setup.run.every == 0 or server.round == setup.rounds:
        clients = engine.examine(setup, server)
        shared, personal = engine.shared(setup, server), mean_score(clients)
        visits += drained(engine)
    diagnostics = measure(setup.run.record, replace(seen, shared=shared, personal=personal))
    return Record(
        round=server.round,
        cohort=list(seen.cohort),
        shared=shared,
        personal=personal,
        clients=tuple(score.overall for score in clients),
        bytes_up=sum(v.bytes_up for v in visits),
        bytes_down=sum(v.bytes_down for v in visits),
        seconds=round(time.perf_counter() - began, 4),
        peak_rss_mb=round(peak_rss_mb(), 1),
        pseudo=engine.pseudo(setup),
        diagnostics=diagnostics,
        untuned=engine.untuned(),
        dropped={str(v.client): v.dropped for v in visits if v.dropped},
    )
