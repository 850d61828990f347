"""Several methods on one federation, with the same cohorts and first parameters, over the same seeds.

A comparison's folder has compare.json (the spec, resolved), a run folder for each row and seed, and at the end table.md
and table.json. If it is killed, at whatever moment, the same command continues it: finished runs are read, the one that
was stopped is resumed, the others are run.
"""

import json
import multiprocessing
import platform
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from os import PathLike
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
import torch

from ..base.errors import UserError, unknown
from ..base.files import FolderLock, write_atomic
from ..base.version import __version__
from ..base.workers import torch_threads
from ..clip.load import load
from ..evaluation.metrics import METRICS
from ..report.comparison_formats import markdown
from ..settings.run import Run, read_toml
from ..simulation.build import assemble, deal
from . import execute
from .callback import Callback, ComparisonCallback
from .comparison_spec import NOTE, ComparedRow, ComparisonSpec, RowSpec, Seeds, difference, load_spec, make_spec
from .result import PARTS

NUMBERS = ("last", "last10", "best")
Summary = dict[str, Any]
PlacedRun = tuple[ComparedRow, Run, Path | None]  # with its folder, if it is kept


SILENT = ComparisonCallback()


@dataclass(frozen=True)
class Comparison:
    """`summary` is what `fedtailor compare --json` prints; `runs` are the summaries of each row's runs, by title."""

    summary: Summary
    runs: dict[str, list[Summary]]
    folder: Path | None = None


def compare(
    methods: Sequence[RowSpec] | ComparisonSpec,
    settings: Mapping[str, Any] | None = None,
    /,
    *,
    seeds: Seeds | None = None,
    number: str = "last",
    out: str | PathLike[str] | None = None,
    callback: ComparisonCallback = SILENT,
    sort: str | None = None,
    jobs: int = 1,
    **more: Any,
) -> Comparison:
    """Compare methods. Settings apply to all of them; a method's own stand with it. `seeds=3` means 0, 1 and 2.

    `sort="overall"` puts the best row first; `jobs=2` makes two runs at a time, each in its own process. Runs that the
    folder `out` already has are read or resumed; without a folder nothing is kept.

    compare(["promptfl", "promptprox:method.mu=0.1", ("fedavg", {"tuner": "lora"})], {"data.alpha": 0.5}, seeds=3)
    """
    given = {**(settings or {}), **more}
    spec = methods if isinstance(methods, ComparisonSpec) else make_spec(methods, given, seeds)
    if spec is methods and (given or seeds is not None):
        raise UserError("a ComparisonSpec is complete; give further settings to make_spec")
    if number not in NUMBERS:
        raise unknown("number", number, NUMBERS)
    if sort is not None and sort not in METRICS:
        raise unknown("sort", sort, METRICS)
    if jobs < 1:
        raise UserError(f"jobs={jobs}: 1 or more runs at a time")
    folder = None if out is None else Path(out)
    if folder is not None:
        check_folder(spec, folder)
    runs: list[PlacedRun] = [(row, run, folder and folder / place) for row, run, place in spec.runs()]
    left = [(row, run) for row, run, place in runs if place is None or not (place / "result.json").is_file()]
    prepare(left, callback)
    found: dict[str, list[Summary]] = {row.title: [] for row in spec.rows}
    with nullcontext() if folder is None else locked(folder):
        if folder is not None:
            write_atomic(folder / NOTE, as_json({**spec.note(), "number": number, "sort": sort}))
        for (row, _, _), result in zip(runs, run_all(runs, callback, jobs), strict=True):
            found[row.title].append(result)
        summary = summarise(spec, found, number, sort, folder)
        if folder is not None:
            write_atomic(folder / "table.json", as_json(summary))
            write_atomic(folder / "table.md", markdown(summary).encode())
    return Comparison(summary, found, folder)


def prepare(runs: Sequence[tuple[ComparedRow, Run]], callback: ComparisonCallback) -> None:
    """Build every run once, so that mistakes show before the first run, and images are encoded in no row's time."""
    if not runs:
        return
    with torch_threads(runs[0][1].threads):
        checkpoint = load(runs[0][1].backbone.name)
        seed = None
        for done, (row, run) in enumerate(runs):
            callback.on_progress("preparing", done, len(runs))
            if run.seed != seed:
                seed, (federation, groups) = run.seed, deal(run)
            try:
                assemble(run, federation, groups, checkpoint, callback.on_progress)
            except UserError as error:
                raise UserError(f"{row.title}: {error}") from error
        callback.on_progress("preparing", len(runs), len(runs))


def run_all(runs: Sequence[PlacedRun], callback: ComparisonCallback, jobs: int) -> Iterator[Summary]:
    """Every run's summary, in this order, though several may run at a time."""
    if jobs == 1:
        for done, (row, run, place) in enumerate(runs):
            callback.on_run(row.title, run.seed, done, len(runs))
            yield run_or_read(run, place, callback)
        return
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
        futures = {pool.submit(run_or_read, run, place): (row, run) for row, run, place in runs}
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


def run_or_read(run: Run, folder: Path | None, callback: Callback = execute.SILENT) -> Summary:
    """A run's summary: read if it is finished, resumed if it was stopped, else run."""
    if folder is None or not (folder / "run.toml").is_file():
        return execute.run(run, out=folder, callback=callback).summary
    if read_toml(folder / "run.toml") != run:
        raise UserError(f"{folder} holds another run than the comparison's; was it edited? Remove it to run it anew")
    if (result := folder / "result.json").is_file():
        return dict(json.loads(result.read_text()))
    return execute.resume(folder, callback=callback).summary


def summarise(
    spec: ComparisonSpec, found: dict[str, list[Summary]], number: str, sort: str | None, folder: Path | None
) -> Summary:
    versions = {"fedtailor": __version__, "torch": torch.__version__, "numpy": np.__version__}
    return {
        "rows": [table_row(row, found[row.title], number) for row in spec.rows],
        "seeds": list(spec.seeds),
        "number": number,
        "sort": sort,
        "same": spec.same,
        "command": spec.command,
        "date": datetime.now(UTC).date().isoformat(),
        "versions": {**versions, "Python": platform.python_version()},
        "folder": None if folder is None else str(folder),
    }


def table_row(row: ComparedRow, runs: Sequence[Summary], number: str) -> dict[str, Any]:
    def scores(run: Summary, part: str) -> dict[str, Any]:
        """A method that does not train has only one number."""
        return (run[part] if number == "last" or not run["rounds"] else run[number][part]) or {}

    return {
        "method": row.method,
        "title": row.title,
        "tuner": row.run.tuner.name,
        "labels": runs[0]["labels"],
        "settings": row.own,
        "rounds": row.run.rounds,
        "seeds": [run["seed"] for run in runs],
        **{part: {name: spread([scores(run, part).get(name) for run in runs]) for name in METRICS} for part in PARTS},
        **{key: spread([run[key] for run in runs]) for key in ("worst_client", "bytes_up", "bytes_down", "seconds")},
    }


def spread(values: Sequence[float | None]) -> dict[str, float | None]:
    """Mean and sample standard deviation over the seeds that have the number."""
    known = [value for value in values if value is not None]
    mean, std = fmean(known) if known else None, stdev(known) if len(known) > 1 else None
    return {"mean": mean and round(mean, 4), "std": std and round(std, 4)}


def as_json(value: Any) -> bytes:
    return (json.dumps(value, indent=1, ensure_ascii=False) + "\n").encode()


def locked(folder: Path) -> FolderLock:
    """One process at a time."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot make the folder {folder}: {error.strerror}; choose another --out") from error
    return FolderLock(folder)


def check_folder(spec: ComparisonSpec, folder: Path) -> None:
    """A folder is new, or holds this very comparison; seeds may be added to it."""
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file; choose another --out")
    if not (folder / NOTE).is_file():
        # A comparison that was killed before it wrote anything may leave these two.
        if folder.exists() and {file.name for file in folder.iterdir()} - {".lock", f"{NOTE}.part"}:
            raise UserError(f"{folder} is not empty, and holds no comparison; choose another --out")
    elif other := difference(load_spec(folder)[0], spec):
        advice = f"choose another --out, or go on with that one: fedtailor compare --resume {folder}"
        raise UserError(f"{folder} holds another comparison: {other}; {advice}")
