"""Several runs: prepared, run one after the other or some at a time, and read where they are finished."""

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

from ..base.errors import UserError
from ..base.workers import torch_threads
from ..clip.load import load
from ..settings.run import Run, read_toml
from ..simulation.build import assemble, deal
from . import execute
from .callback import Callback, ComparisonCallback
from .comparison_spec import ComparedRow
from .result_file import RESULT, read_result

SILENT = ComparisonCallback()
Summary = dict[str, Any]
PlacedRun = tuple[ComparedRow, Run, Path | None]  # with its folder, if it is kept
RunOrRead = Callable[..., Summary]


def prepare(runs: Sequence[tuple[ComparedRow, Run]], callback: ComparisonCallback) -> None:
    """Build every run once, so that mistakes show before the first run, and images are encoded in no row's time."""
    backbone: object = None
    dealt: object = None
    for done, (row, run) in enumerate(runs):
        callback.on_progress("preparing", done, len(runs))
        with torch_threads(run.threads):
            if run.backbone.name != backbone:
                backbone, checkpoint = run.backbone.name, load(run.backbone.name)
            if (run.data, run.clients, run.seed) != dealt:
                dealt, (federation, groups) = (run.data, run.clients, run.seed), deal(run)
            try:
                assemble(run, federation, groups, checkpoint, callback.on_progress)
            except UserError as error:
                raise UserError(f"{row.title}: {error}") from error
    if runs:
        callback.on_progress("preparing", len(runs), len(runs))


def unfinished(runs: Sequence[PlacedRun]) -> list[tuple[ComparedRow, Run]]:
    return [(row, run) for row, run, place in runs if place is None or not (place / RESULT).is_file()]


def run_or_read(run: Run, folder: Path | None, callback: Callback = execute.SILENT) -> Summary:
    """A run's summary: read if it is finished, resumed if it was stopped, else run."""
    if folder is None or not (folder / "run.toml").is_file():
        return execute.run(run, out=folder, callback=callback).summary
    if read_toml(folder / "run.toml") != run:
        raise UserError(f"{folder} holds another run than the comparison's; was it edited? Remove it to run it anew")
    if (folder / RESULT).is_file():
        return read_result(folder)
    return execute.resume(folder, callback=callback).summary


def run_all(
    runs: Sequence[PlacedRun], callback: ComparisonCallback, jobs: int, go: RunOrRead = run_or_read
) -> Iterator[Summary]:
    """Every run's summary, in this order, though several may run at a time."""
    if jobs == 1:
        for done, (row, run, place) in enumerate(runs):
            callback.on_run(row.title, run.seed, done, len(runs))
            yield go(run, place, callback)
        return
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
        futures = {pool.submit(go, run, place): (row, run) for row, run, place in runs}
        try:
            for done, future in enumerate(as_completed(futures)):
                future.result()  # an error in one run ends the comparison now, not when its turn comes
                row, run = futures[future]
                callback.on_run(row.title, run.seed, done, len(runs))
        except BrokenProcessPool as error:
            why = "a run's process was ended from outside; the same command goes on with it"
            raise UserError(f"{why}, perhaps with fewer than {jobs} --jobs") from error
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
        yield from (future.result() for future in futures)
