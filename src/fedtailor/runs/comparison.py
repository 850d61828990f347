"""Several methods on one federation, with the same cohorts and first parameters, over the same seeds.

A comparison's folder holds compare.json (what is compared, resolved), a run folder for each row and seed, and at the
end table.md and table.json. Whatever moment it is killed at, the same command goes on: finished runs are read, the one
that was stopped is resumed, the rest are begun.
"""

from __future__ import annotations

import json
import multiprocessing
import platform
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
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
from ..clip.load import load
from ..evaluation.metrics import NAMES
from ..report.comparison import markdown
from ..settings.run import Run, read_toml
from ..simulation.build import assemble, deal
from . import execute
from .comparison_spec import (
    NOTE,
    ComparedRow,
    ComparisonSpec,
    RowSpec,
    Seeds,
    difference,
    load_spec,
    make_spec,
    placeless,
    short_key,
)

NUMBERS = ("last", "last10", "best")


class ComparisonCallback(execute.Callback):
    """Told how each run goes on, and which it is."""

    def on_run(self, title: str, seed: int, done: int, total: int) -> None:
        """So many runs are over, of so many; this one is next."""


SILENT = ComparisonCallback()


@dataclass(frozen=True)
class Comparison:
    """`summary` is what `fedtailor compare --json` prints; `runs` are the summaries of each row's runs, by title."""

    summary: dict[str, Any]
    runs: dict[str, list[dict[str, Any]]]
    folder: Path | None = None


def compare(
    methods: Sequence[RowSpec],
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
    """Compare methods. Settings are for all of them; a method's own stand with it. `seeds=3` are seeds 0, 1 and 2.

    `sort="overall"` puts the best row first; with `jobs=2` two runs go on at a time, each in a process of its own.

    compare(["promptfl", "promptprox:method.mu=0.1", ("fedavg", {"tuner": "lora"})], {"data.alpha": 0.5}, seeds=3)
    """
    spec = make_spec(methods, {**(settings or {}), **more}, seeds)
    return run_comparison(spec, None if out is None else Path(out), number, callback, sort, jobs)


# --- the runs -------------------------------------------------------------------------------------------------------


def run_comparison(
    spec: ComparisonSpec,
    folder: Path | None,
    number: str = "last",
    callback: ComparisonCallback = SILENT,
    sort: str | None = None,
    jobs: int = 1,
) -> Comparison:
    """Make, resume or read every run, and put them side by side. Without a folder nothing is kept."""
    if number not in NUMBERS:
        raise unknown("number", number, NUMBERS)
    if sort is not None and sort not in NAMES:
        raise unknown("sort", sort, NAMES)
    if jobs < 1:
        raise UserError(f"jobs={jobs}: 1 or more runs at a time")
    if folder is not None:
        check_folder(spec, folder)
    left = [
        (row, run)
        for row, run, place in spec.runs()
        if folder is None or not (folder / place / "result.json").is_file()
    ]
    if left:
        rehearse(left, callback)
    if folder is None:
        return side_by_side(spec, None, number, callback, sort, jobs)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot make the folder {folder}: {error.strerror}; choose another --out") from error
    with FolderLock(folder):
        write_atomic(folder / NOTE, as_json({**spec.note(), "number": number, "sort": sort}))
        made = side_by_side(spec, folder, number, callback, sort, jobs)
        write_atomic(folder / "table.json", as_json(made.summary))
        write_atomic(folder / "table.md", markdown(made.summary).encode())
    return made


def rehearse(runs: Sequence[tuple[ComparedRow, Run]], callback: ComparisonCallback) -> None:
    """What can go wrong before a first round goes wrong here, before the first run.

    Images are encoded here too, once for all rows, so that no row's seconds bear it.
    """
    with execute.threads(runs[0][1].threads):
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


def side_by_side(
    spec: ComparisonSpec, folder: Path | None, number: str, callback: ComparisonCallback, sort: str | None, jobs: int
) -> Comparison:
    runs = [(row, run, None if folder is None else folder / place) for row, run, place in spec.runs()]
    found: dict[str, list[dict[str, Any]]] = {row.title: [] for row in spec.rows}
    for (row, _, _), summary in zip(runs, summaries(runs, callback, jobs), strict=True):
        found[row.title].append(summary)
    same = {short_key(key): placeless(value) for key, value in spec.rows[-1].held.items() if value != ""}
    summary = {
        "rows": [table_row(row, found[row.title], number) for row in spec.rows],
        "seeds": list(spec.seeds),
        "number": number,
        "sort": sort,
        "same": same,
        "command": spec.command,
        "date": datetime.now(UTC).date().isoformat(),
        "versions": {
            "fedtailor": __version__,
            "torch": torch.__version__,
            "numpy": np.__version__,
            "Python": platform.python_version(),
        },
        "folder": None if folder is None else str(folder),
    }
    return Comparison(summary, found, folder)


def summaries(
    runs: Sequence[tuple[ComparedRow, Run, Path | None]], callback: ComparisonCallback, jobs: int
) -> Iterator[dict[str, Any]]:
    """Of every run, in this order; several are made at a time if asked."""
    if jobs == 1:
        for done, (row, run, place) in enumerate(runs):
            callback.on_run(row.title, run.seed, done, len(runs))
            yield summary_of(run, place, callback)
        return
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
        futures = {pool.submit(summary_of, run, place): (row, run) for row, run, place in runs}
        try:
            for done, future in enumerate(as_completed(futures)):
                future.result()  # what goes wrong in one ends the comparison now, not when its turn comes
                row, run = futures[future]
                callback.on_run(row.title, run.seed, done, len(runs))
        except BrokenProcessPool as error:
            told = "a run's process was ended from outside; the same command goes on with it"
            raise UserError(f"{told}, perhaps with fewer than {jobs} --jobs") from error
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
        yield from (future.result() for future in futures)


def summary_of(run: Run, folder: Path | None, callback: execute.Callback = execute.SILENT) -> dict[str, Any]:
    """Read where it is finished, resumed where it was stopped, else run."""
    if folder is None or not (folder / "run.toml").is_file():
        return execute.run(run, out=folder, callback=callback).summary
    if read_toml(folder / "run.toml") != run:
        raise UserError(f"{folder} holds another run than the comparison's; was it edited? Remove it to run it anew")
    result = folder / "result.json"
    return (
        dict(json.loads(result.read_text())) if result.is_file() else execute.resume(folder, callback=callback).summary
    )


# --- the numbers ----------------------------------------------------------------------------------------------------


def table_row(row: ComparedRow, summaries: Sequence[dict[str, Any]], number: str) -> dict[str, Any]:
    def over(key: str) -> dict[str, float | None]:
        return spread([summary[key] for summary in summaries])

    return {
        "method": row.method,
        "title": row.title,
        "tuner": row.run.tuner.name,
        "labels": summaries[0]["labels"],
        "settings": row.own,
        "rounds": row.run.rounds,
        "seeds": [summary["seed"] for summary in summaries],
        **{
            part: {name: spread([scores(summary, part, number).get(name) for summary in summaries]) for name in NAMES}
            for part in ("global", "personal")
        },
        **{key: over(key) for key in ("worst_client", "bytes_up", "bytes_down", "seconds")},
    }


def scores(summary: Mapping[str, Any], part: str, number: str) -> dict[str, Any]:
    """What does not train has only one number."""
    chosen = summary[part] if number == "last" or not summary["rounds"] else summary[number][part]
    return dict(chosen or {})


def spread(values: Sequence[float | None]) -> dict[str, float | None]:
    """Mean and sample standard deviation of the seeds that have the number."""
    known = [value for value in values if value is not None]
    return {
        "mean": round(fmean(known), 4) if known else None,
        "std": round(stdev(known), 4) if len(known) > 1 else None,
    }


# --- the folder -----------------------------------------------------------------------------------------------------


def as_json(value: Any) -> bytes:
    return (json.dumps(value, indent=1, ensure_ascii=False) + "\n").encode()


def check_folder(spec: ComparisonSpec, folder: Path) -> None:
    """A folder is new, or holds this very comparison; seeds may be added to it."""
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file; choose another --out")
    if not (folder / NOTE).is_file():
        # What a comparison leaves that was killed before it could write anything is no reason to refuse.
        if folder.exists() and {file.name for file in folder.iterdir()} - {".lock", f"{NOTE}.part"}:
            raise UserError(f"{folder} is not empty, and holds no comparison; choose another --out")
        return
    if told := difference(load_spec(folder)[0], spec):
        raise UserError(
            f"{folder} holds another comparison: {told}; choose another --out, or go on with that one: "
            f"fedtailor compare --resume {folder}"
        )
