"""The same as the command line, from Python: `run("promptfl", data="drawn-lt", rounds=10)`."""

import time
from collections.abc import Iterator, Mapping
from os import PathLike
from pathlib import Path
from typing import Any

from ..base.documents import sealed
from ..base.errors import UserError
from ..base.files import write_atomic
from ..base.workers import torch_threads
from ..core import Method
from ..evaluation.metrics import Score
from ..evaluation.testing import zero_shot
from ..privacy.releases import FILE as RELEASES
from ..privacy.releases import Releases
from ..settings.engines import ENGINES
from ..settings.run import Run, make_run, read_toml
from ..simulation.build import Experiment, build
from ..simulation.engine import MakeEngine, make_engine
from ..simulation.loop import RoundRecord, peak_rss_mb, rounds
from ..use.model_file import FOLDER
from .callback import Callback
from .folder import DATA, RunFolder
from .model_folder import save_model, scores_of
from .predictions import save_predictions
from .result import Result, summarise
from .result_file import PARTS, RESULT

SILENT = Callback()


def run(
    method: str | type[Method] | Run | None = None,
    settings: Mapping[str, Any] | None = None,
    /,
    *,
    out: str | PathLike[str] | None = None,
    callback: Callback = SILENT,
    **more: Any,
) -> Result:
    """Run a method, by its name or its class. Settings are the command line's keys: short ones as keywords, dotted ones
    in a dict before them.

    run("fedprox", {"data.alpha": 0.5, "method.mu": 0.1}, rounds=20, tuner="lora", out="runs/mine")
    """
    resolved = method if isinstance(method, Run) else make_run(method, {**(settings or {}), **more})
    if isinstance(method, Run) and (settings or more):
        raise UserError("a Run is complete; give further settings to make_run")
    began = time.perf_counter()
    if out is not None:
        RunFolder.check_free(Path(out))  # before the work of preparing, too
    callback.on_folder(None if out is None else Path(out))
    with torch_threads(resolved.threads):
        experiment = build(resolved, callback.on_progress)
        store = None if out is None else RunFolder.create(Path(out), resolved, about(experiment))
        return execute(experiment, store, False, began, callback)


def resume(folder: str | PathLike[str], *, rounds: int | None = None, callback: Callback = SILENT) -> Result:
    """Go on with the run in a folder, from its last checkpoint to exactly the numbers it would have had; or, with
    `rounds`, to those of a run of so many."""
    began = time.perf_counter()
    store, resolved, noted = RunFolder.reopen(Path(folder))
    with torch_threads(resolved.threads):
        try:
            callback.on_folder(store.folder)
            changed = resolved if rounds is None else with_rounds(store, resolved, rounds)
            experiment = build(changed, callback.on_progress)
            check_same(folder, experiment, noted)
            if changed != resolved:
                store.change(changed, noted)
        except BaseException:
            store.close()
            raise
        return execute(experiment, store, True, began, callback)


def with_rounds(store: RunFolder, run: Run, rounds: int) -> Run:
    """The same run with another number of rounds, if what is done of it is also what is done of that one."""
    changed = read_toml(store.folder / "run.toml", {"rounds": rounds})
    done, method, name = store.done(), run.method.value, run.method.name
    if changed.rounds == run.rounds:
        return run
    if rounds < done:
        raise UserError(f"rounds={rounds}: {done} are done already; give more, or none to go on to {run.rounds}")
    for last in (run.rounds, rounds):
        if done > last - method.ending or (method.closing and done > last):
            unlike = f"the last {method.ending}" if method.ending else f"those after round {last}"
            raise UserError(
                f"rounds={rounds}: of {name}'s rounds {unlike} are unlike the others, and in a run of {last} some of "
                f"these are done ({done} rounds), so it would not be a run of {rounds}; run that anew, in a new folder"
            )
    return changed


def about(experiment: Experiment) -> dict[str, str]:
    """What a run depends on besides its settings."""
    dataset, notes = experiment.federation.dataset, " · ".join(experiment.notes)
    return {
        **({"notes": notes} if notes else {}),
        "backbone": experiment.weights,
        "train_data": dataset.train.images.fingerprint,
        "test_data": dataset.test.images.fingerprint,
    }


def data_facts(experiment: Experiment, zero_shot: tuple[Score, Score]) -> dict[str, Any]:
    """For data.json: what a figure needs to know, years later, without the dataset. As far as this place knows it:
    a server whose clients are elsewhere has no counts of theirs."""
    federation, dataset = experiment.federation, experiment.federation.dataset
    labels, classes = dataset.train.labels, federation.class_names
    return {
        "name": dataset.name,
        "classes": list(dataset.classes),
        "clients": [federation.name_of(k) for k in range(experiment.run.clients)],  # in the order of counts
        "template": experiment.run.data.template or dataset.template,
        "groups": {name: [classes[c] for c in members] for name, members in experiment.groups.items()},
        "counts": federation.counts.tolist() if labels is not None and len(labels) else None,  # (K, C)
        "broken": dataset.broken,  # pictures that could not be read and were left out
        "zero_shot": {part: score.row(classes) for part, score in zip(PARTS, zero_shot, strict=True)},
    }


def check_same(folder: str | PathLike[str], experiment: Experiment, noted: Mapping[str, str]) -> None:
    for what, now in about(experiment).items():
        if what != "notes" and noted.get(what) != now:  # notes only tell of the rest
            raise UserError(f"{folder}: the {what.replace('_', ' ')} is not the one that this run began with")


def train(
    experiment: Experiment, store: RunFolder | None = None, resuming: bool = False, make: MakeEngine = make_engine
) -> Iterator[RoundRecord]:
    """Run the rounds that are left, one record each. With a folder, each is kept before it is given out."""
    saved = store.resume() if store and resuming else None
    server = experiment.job.resumed(saved[0]) if saved else experiment.job.first_server()
    name_of = experiment.federation.name_of
    engine = make(experiment, store.clients if store else None, store.folder if store else None)
    engine.trace = [] if experiment.run.record else None
    engine.releases = Releases(store.folder / RELEASES if store else None)
    try:
        if server.round < experiment.rounds:  # what is over takes no client to be told again
            engine.open()
        if store and not saved:
            store.checkpoint(server, {})
        for finished in rounds(experiment, engine, server):
            if store:
                if finished.said and finished.server.round == experiment.rounds:
                    save_predictions(store.folder, experiment.tests, finished.said)
                store.save_round(finished.record.row(), [step.row(name_of(step.client)) for step in finished.steps])
                store.checkpoint(finished.server, engine.clients.changed)
            engine.committed()
            yield finished.record
    finally:
        engine.close()


def keep_model(store: RunFolder, experiment: Experiment, make: MakeEngine, summary: dict[str, Any]) -> None:
    """As the last checkpoint has it."""
    saved = store.resume()
    assert saved is not None  # there is one before the first round
    here = make is make_engine and not ENGINES[experiment.run.engine].remote
    server = experiment.job.resumed(saved[0])
    to, clients = store.folder / FOLDER, store.clients if here else None
    save_model(to, experiment, server, clients, scores_of(summary))


def execute(
    experiment: Experiment,
    store: RunFolder | None,
    resuming: bool,
    began: float,
    callback: Callback,
    make: MakeEngine = make_engine,
) -> Result:
    result: Result | None = None
    try:
        untuned = zero_shot(experiment.job, experiment.tests)
        whole, parts = experiment.tests.scores(untuned)
        scores = whole, parts.mean()
        if store:
            write_atomic(store.folder / DATA, sealed(data_facts(experiment, scores)))
        if store and not experiment.rounds:
            save_predictions(store.folder, experiment.tests, untuned)
        callback.on_start(experiment, whole, store.done() if store and resuming else 0)
        rows: list[dict[str, Any]] = []
        for record in train(experiment, store, resuming, make):
            rows.append(record.row())
            callback.on_round(record, experiment.rounds)
        seconds, peak, folder = time.perf_counter() - began, peak_rss_mb(), None
        if store:
            new, rows, folder, told = len(rows), store.rounds(), store.folder, store.result() if resuming else {}
            before = told.get("seconds", sum(row["seconds"] for row in rows[: len(rows) - new]))
            # What is finished already is only told again: its costs are those that it had.
            seconds, peak = (before, told["peak_rss_mb"]) if told and not new else (before + seconds, peak)
        summary = summarise(experiment, scores, rows, folder, seconds, peak)
        if store:
            keep_model(store, experiment, make, summary)
            write_atomic(store.folder / RESULT, sealed(summary))
        result = Result(experiment.run, summary, rows, folder)
        return result
    finally:
        try:
            callback.on_end(result)
        finally:
            if store:
                store.close()
