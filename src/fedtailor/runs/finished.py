"""Runs that are finished, compared as they are: those that differ in the seed alone are one row."""

import json
import shlex
from collections.abc import Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path

from ..base.errors import UserError
from ..base.keys import flat
from ..settings.keys import read_document
from ..settings.run import Run, read_toml
from .comparison import Comparison, locked, write_tables
from .comparison_plan import ComparisonPlan, Shown
from .comparison_spec import NOTE, ComparedRow, ComparisonSpec, short_key
from .comparison_summary import Found, summarise
from .format import check_format
from .many import Summary
from .records import run_folders
from .result_file import RESULT, read_result

FinishedRun = tuple[Run, Summary, Path]


def compare_finished(
    folders: Sequence[str | PathLike[str]],
    *,
    out: str | PathLike[str] | None = None,
    number: str = "last",
    sort: str | None = None,
    show: str | None = None,
    against: str | None = None,
) -> Comparison:
    """The same table as `compare`, of run folders, or of folders with some in them. Nothing is run."""
    if not folders:
        raise UserError("no folder is named; name those to compare: fedtailor compare --runs runs/one runs/two")
    places = {place.resolve(): place for it in folders for place in run_folders(Path(it))}
    runs = [read_run(place) for place in places.values()]
    plan, found = as_rows(runs)
    shown, folder = Shown(number, sort, show, against), None if out is None else Path(out)
    shown.check(plan)
    words = shlex.join(["fedtailor", "compare", "--runs", *map(str, folders)])
    summary = {**summarise(plan, [found], shown, folder), "command": words}
    if unequal := [short_key(key) for key in unequal_keys(plan.first.rows)]:
        summary["same"] = {key: value for key, value in summary["same"].items() if key not in unequal}
        summary["unequal"] = unequal
    if folder is not None:
        if (folder / NOTE).is_file():
            raise UserError(f"{out} is the folder of a comparison, which has a table of its own; choose another --out")
        with locked(folder):
            write_tables(summary, folder)
    return Comparison(summary, {title: [run for run, _ in its] for title, its in found.items()}, folder)


def read_run(folder: Path) -> FinishedRun:
    check_format(folder, read_document(folder / "run.toml").get("about", {}))
    if not (folder / RESULT).is_file():
        raise UserError(f"{folder} is not finished; go on with it: fedtailor run --resume {shlex.quote(str(folder))}")
    return read_toml(folder / "run.toml"), read_result(folder), folder


def as_rows(runs: Sequence[FinishedRun]) -> tuple[ComparisonPlan, Found]:
    grouped: dict[str, list[FinishedRun]] = {}
    for run, summary, place in sorted(runs, key=lambda it: (it[0].method.value.trains, it[0].seed)):
        kin = grouped.setdefault(json.dumps({**run.document(), "seed": 0}, sort_keys=True), [])
        if twin := next((other for it, _, other in kin if it.seed == run.seed), None):
            raise UserError(f"{twin} and {place} are the same run; leave one of them out")
        kin.append((run, summary, place))
    rows = titled([its[0][0] for its in grouped.values()])
    found: Found = {row.title: [(it[1], it[2]) for it in its] for row, its in zip(rows, grouped.values(), strict=True)}
    seeds = sorted({run.seed for run, *_ in runs})
    return ComparisonPlan.of(ComparisonSpec(tuple(rows), {}, tuple(seeds))), found


def titled(runs: Sequence[Run]) -> list[ComparedRow]:
    """Each with what sets it apart: from other rows of its method, and from any in what should be equal."""
    plain = [ComparedRow(run.method.name, {}, run) for run in runs]
    unequal = unequal_keys(plain)
    made = []
    for row in plain:
        kin = [flat(other.resolved) for other in plain if other.method == row.method]
        mine = flat(row.resolved)
        differ = [key for key in mine if key in unequal or any(other.get(key) != mine[key] for other in kin)]
        made.append(replace(row, own={key: mine[key] for key in differ}))
    return made


def unequal_keys(rows: Sequence[ComparedRow]) -> list[str]:
    """What a comparison would have made equal, and is not, by full keys."""
    keys = dict.fromkeys(key for row in rows for key in row.common)
    return [key for key in keys if len({json.dumps(row.common[key]) for row in rows if key in row.common}) > 1]
