"""The round loop: cohort, the method's round, tests, one record. It knows no method, no engine and no file."""

import resource
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..base.errors import UserError
from ..base.rng import generator
from ..core.types import Server
from ..evaluation.diagnostics import measure
from ..evaluation.diagnostics.backdoor import backdoor
from ..evaluation.diagnostics.round import RoundView
from ..evaluation.metrics import Score
from ..evaluation.testing import Said
from ..privacy.ledger import BudgetSpent
from .build import Change, Experiment
from .engine import Engine, Evaluation, StepLog, TooFewReplies
from .guarded import Guarded

SPENT = "the privacy budget ended the round before it was over"


@dataclass(frozen=True)
class RoundRecord:
    """What is recorded of a round, with its clients by name. Scores are None in rounds that are not tested."""

    round: int  # counted from 1
    cohort: list[str]
    classes: tuple[str, ...]  # their names, in the order that scores have
    shared: Score | None  # of the server's model
    personal: Score | None  # the mean over clients, each with its own model
    clients: dict[str, float | None]  # each client's overall; empty in rounds that are not tested
    bytes_up: int
    bytes_down: int
    seconds: float
    peak_rss_mb: float
    pseudo: dict[str, Any] | None  # how good pseudo-labels are; None if labels are given, or the true ones unknown
    diagnostics: dict[str, Any]  # by name, those the run records
    untuned: Score | None  # zero-shot CLIP on remote clients' own test pictures
    dropped: dict[str, str]  # by client, why its reply does not count
    privacy: dict[str, Any] | None = None  # ε and δ so far, and whether there can be no further round
    joined: list[str] = field(default_factory=list)  # who takes part from this round on, and did not in the last
    left: list[str] = field(default_factory=list)  # who did in the last, and does not any more

    def row(self) -> dict[str, Any]:
        """As a line of rounds.jsonl."""
        scores = {"global": self.shared, "personal": self.personal, "untuned": self.untuned}
        rest = {k: v for k, v in vars(self).items() if k not in {"classes", "shared", "personal", "untuned"}}
        return rest | {name: None if score is None else score.row(self.classes) for name, score in scores.items()}


@dataclass(frozen=True)
class FinishedRound:
    record: RoundRecord
    server: Server
    steps: list[StepLog]  # of every client, those that do not count too
    said: Said | None = None  # in its test, if it was tested


def peak_rss_mb() -> float:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1 << 20 if sys.platform == "darwin" else 1 << 10)  # bytes there, kilobytes elsewhere


def rounds(experiment: Experiment, engine: Engine, server: Server) -> Iterator[FinishedRound]:
    """The rounds that are left, from a server's state on."""
    while server.round < experiment.rounds:
        began = time.perf_counter()
        before, clients = server, engine.clients.before()
        try:
            server, cohort, steps = run_round_with_retries(experiment, server, engine)
        except BudgetSpent:
            server, cohort, steps = given_up(server, engine)
        ledger = engine.ledger(server)
        if spent := ledger is not None and (not cohort or not ledger.affords(before)):
            server = replace(server, round=max(server.round, experiment.run.rounds))  # closing rounds tell nothing
        tested = None
        if server.round % experiment.run.every == 0 or server.round == experiment.rounds:
            tested = engine.evaluate(experiment, server)
            steps += engine.drain_log()
        shared, personal = (tested.shared, tested.clients.mean()) if tested else (None, None)
        seen = RoundView(
            experiment.job, experiment.federation, experiment.tests, experiment.client_data, before, server, clients,
            engine.clients, engine.trace or (), cohort, shared, personal,
        )  # fmt: skip
        found = measure(experiment.run.record, seen) if cohort else {}
        if tested and experiment.triggered is not None:
            found["backdoor"] = backdoor(seen, experiment.triggered)
        told = None if ledger is None else {**ledger.row(), "spent": spent}
        change = experiment.changes.get(before.round + 1, Change())
        record = record_of(seen, tested, steps, found, engine.pseudo_labels(experiment), told, change, began)
        yield FinishedRound(record, server, steps, tested.said if tested else None)
        engine.clients.commit()  # whoever keeps states has done so


def run_round_with_retries(
    experiment: Experiment, server: Server, engine: Engine
) -> tuple[Server, list[int], list[StepLog]]:
    """A round, made again from where it began if too few clients answer. Also: who was asked, and every step."""
    steps, tries = list[StepLog](), experiment.run.plan.tries
    for _ in range(tries):
        if engine.trace:
            engine.trace.clear()
        try:
            after, cohort = run_round(experiment, server, engine)
            return after, cohort, steps + engine.drain_log()
        except TooFewReplies as short:
            engine.clients.roll_back()
            steps += (these := engine.drain_log())
            reasons = "; ".join(f"client {step.client}: {step.dropped}" for step in these if step.dropped)
            last = f"round {server.round + 1}: {short}; {reasons}"
    raise UserError(f"{last}; tried {tries} times (plan.tries). Resume the run when more clients are there")


def given_up(server: Server, engine: Engine) -> tuple[Server, list[int], list[StepLog]]:
    """A round that the privacy budget ended before it was over: the model is the last one's. What this one released is
    released all the same, and is counted."""
    engine.clients.roll_back()
    ledger = engine.ledger(server)
    after = ledger.kept(server) if ledger else server
    return replace(after, round=server.round + 1), [], [replace(step, dropped=SPENT) for step in engine.drain_log()]


def run_round(
    experiment: Experiment, server: Server, engine: Engine, cohort: Sequence[int] | None = None
) -> tuple[Server, list[int]]:
    """One round: labels where they are due, then the method's round, or its closing one. Its cohort is drawn, unless it
    is given. Also: who was asked."""
    run, method, labeler, t = experiment.run, experiment.job.method, experiment.job.labeler, server.round
    members = experiment.job.members
    everyone = among(members, method.everyone)
    if cohort is not None and not (cohort and set(cohort) <= set(everyone)):
        raise UserError(f"a cohort of {list(cohort)} was given; it needs one or more of the clients {everyone}")
    if t >= run.rounds:
        asked = everyone if cohort is None else sorted(set(cohort))
        engine.begin_round(asked, len(asked))
        return replace(method.close(server, asked, engine), round=t + 1), asked

    def draw(fraction: float) -> list[int]:
        rng = generator(run.seed, "cohort", t)
        return sorted(set(cohort or ())) or among(members, lambda n: method.cohort(t, n, fraction, rng))

    ledger = engine.ledger(server)
    each = Guarded(engine, run.robust.value, ledger) if run.robust.value or ledger else engine
    asked = draw(min(1.0, run.fraction * (1 + engine.oversample)))
    engine.begin_round(asked, len(draw(run.fraction)))
    if labeler is not None and labeler.due(t):
        server = replace(labeler.label(server, everyone, each), new_labels=True)
    after = method.round(server, asked, each)
    if run.server.value is not None:
        after = run.server.value(server, after, method.made)
    after = ledger.kept(after) if ledger else after
    return replace(after, round=t + 1, new_labels=False), asked


def among(members: Sequence[int], choose: Callable[[int], list[int]]) -> list[int]:
    """Some of those who take part, chosen by their places; below 0 is the server, with data of its own."""
    return [k if k < 0 else members[k] for k in choose(len(members))]


def record_of(
    seen: RoundView,
    tested: Evaluation | None,
    steps: list[StepLog],
    diagnostics: dict[str, Any],
    pseudo: dict[str, Any] | None,
    privacy: dict[str, Any] | None,
    change: Change,
    began: float,
) -> RoundRecord:
    name_of, members = seen.federation.name_of, seen.job.members
    return RoundRecord(
        round=seen.before.round + 1,
        cohort=[name_of(k) for k in seen.cohort],
        classes=seen.federation.class_names,
        shared=seen.shared,
        personal=seen.personal,
        clients={name_of(k): tested.clients.overall[k] for k in members} if tested else {},
        bytes_up=sum(step.bytes_up for step in steps),
        bytes_down=sum(step.bytes_down for step in steps),
        seconds=round(time.perf_counter() - began, 4),
        peak_rss_mb=round(peak_rss_mb(), 1),
        pseudo=pseudo,
        diagnostics=diagnostics,
        untuned=tested.untuned if tested else None,
        dropped={name_of(step.client): step.dropped for step in steps if step.dropped},
        privacy=privacy,
        joined=[*change.joined],
        left=[*change.left],
    )
