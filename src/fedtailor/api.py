"""The same as the command line, from Python: `run("promptfl", data="drawn-lt", rounds=10)`."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import Any

import torch

from .config import Run, make_run
from .errors import UserError
from .evaluate import score_zero_shot
from .metrics import Score
from .result import Result, summarise
from .setup import Setup, prepare
from .store import Store, write
from .train import Record, peak_rss_mb, train


class Watcher:
    """Told how a run goes on; this one does nothing with it."""

    def working(self, what: str, done: int, total: int) -> None:
        """So much of a piece of work is done."""

    def started(self, setup: Setup, zero_shot: Score) -> None:
        """All is prepared; this is where CLIP stands before any training."""

    def finished(self, record: Record, rounds: int) -> None:
        """A round is over, of so many."""


SILENT = Watcher()


def run(
    method: str | Run | None = None,
    settings: Mapping[str, Any] | None = None,
    /,
    *,
    out: str | PathLike[str] | None = None,
    watcher: Watcher = SILENT,
    **more: Any,
) -> Result:
    """Run a method. Settings are the command line's keys: short ones as keywords, dotted ones in a dict before them.

    run("fedprox", {"data.alpha": 0.5, "method.mu": 0.1}, rounds=20, tuner="lora", out="runs/mine")
    """
    resolved = method if isinstance(method, Run) else make_run(method, {**(settings or {}), **more})
    if isinstance(method, Run) and (settings or more):
        raise UserError("a Run is complete; give further settings to make_run")
    began = time.perf_counter()
    if out is not None:
        Store.check_free(Path(out))  # before the work of preparing, too
    with threads(resolved.threads):
        setup = prepare(resolved, watcher.working)
        store = None if out is None else Store.create(Path(out), resolved, about(setup))
        return carry_out(setup, store, False, began, watcher)


def resume(folder: str | PathLike[str], *, watcher: Watcher = SILENT) -> Result:
    """Go on with the run in a folder, from its last checkpoint to exactly the numbers it would have had."""
    began = time.perf_counter()
    store, resolved, noted = Store.reopen(Path(folder))
    with threads(resolved.threads):
        try:
            setup = prepare(resolved, watcher.working)
            check_same(folder, setup, noted)
        except BaseException:
            store.close()
            raise
        return carry_out(setup, store, True, began, watcher)


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Sums in another number of threads are added up in another order, and differ in their last bits."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def about(setup: Setup) -> dict[str, str]:
    """What a run depends on besides its settings."""
    dataset = setup.federation.dataset
    return {
        "backbone": setup.weights,
        "train_data": dataset.train.images.fingerprint,
        "test_data": dataset.test.images.fingerprint,
    }


def check_same(folder: str | PathLike[str], setup: Setup, noted: Mapping[str, str]) -> None:
    for what, now in about(setup).items():
        if noted.get(what) != now:
            raise UserError(f"{folder}: the {what.replace('_', ' ')} is not the one that this run began with")


def carry_out(setup: Setup, store: Store | None, resuming: bool, began: float, watcher: Watcher) -> Result:
    try:
        zero_shot = score_zero_shot(setup.job, setup.tests)
        watcher.started(setup, zero_shot[0])
        rows: list[dict[str, Any]] = []
        for record in train(setup, store, resuming):
            rows.append(record.row())
            watcher.finished(record, setup.rounds)
        before = 0.0
        if store:
            new, rows = len(rows), store.rounds()
            before = sum(row["seconds"] for row in rows[: len(rows) - new])
        seconds = before + time.perf_counter() - began
        folder = store.folder if store else None
        summary = summarise(setup.run, zero_shot, rows, folder, seconds, peak_rss_mb())
        if store:
            write(store.folder / "result.json", (json.dumps(summary, indent=1) + "\n").encode())
        return Result(setup.run, summary, rows, folder)
    finally:
        if store:
            store.close()
