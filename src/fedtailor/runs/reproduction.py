"""A table or figure of a paper, cell by cell, with what is printed beside what is measured.

A folder holds any number of tables: runs/ has each run once, whatever cells and tables it belongs to, costs.json what
was measured to tell beforehand how long it takes, and PAPER/NAME/SCALE/ the table as md, csv and json. If it is killed,
the same command goes on: finished runs are read, those that were stopped are resumed.
"""

import platform
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..base.documents import sealed
from ..base.errors import UserError
from ..base.files import make_folder, write_atomic
from ..base.version import __version__
from ..report.reproduction import as_csv, as_markdown
from ..settings.run import Run
from .callback import ComparisonCallback
from .comparison import locked
from .comparison_spec import ComparedRow, pairs
from .comparison_summary import spread
from .costs import UNCERTAIN, estimate
from .many import SILENT, Summary, prepare, run_all, run_or_read
from .table_plan import Plan, PlannedCell, kind_of, lacking, line_of
from .table_recipe import Cell, Recipe
from .tuning import Tuned, tune


def left(plan: Plan, seeds: Sequence[int], out: Path) -> dict[Path, tuple[PlannedCell, Run]]:
    """The runs that are not finished."""
    return {place: what for place, what in plan.runs(seeds).items() if not (out / place / "result.json").is_file()}


def foresee(
    plan: Plan,
    seeds: Sequence[int],
    out: Path,
    jobs: int = 1,
    callback: ComparisonCallback = SILENT,
    fetch: bool = False,
) -> Summary:
    """What `fedtailor reproduce --dry-run --json` prints: cells, settings, what is lacking here, time and memory.
    What is measured to tell these is kept in the folder. With `fetch`, a backbone may come from the hub."""
    if jobs < 1:
        raise UserError(f"jobs={jobs}: 1 or more runs at a time")
    runs, rest, absent = plan.runs(seeds), left(plan, seeds, out), lacking(plan, fetch)
    found = None
    if not absent:
        time_ = estimate([run for _, run in rest.values()], out / "costs.json", jobs, callback)
        found = {**asdict(time_), "uncertain": UNCERTAIN}
    chosen = [planned for planned in plan.cells if planned.cell.name in plan.chosen]
    cells = [
        {
            **where(planned.cell),
            "command": "" if planned.run is None else command(planned),
            "stands_in": planned.stands_in,
            "missing": planned.missing,
            "mean": planned.cell.column.mean and f"the mean of {planned.cell.column.mean}",
            "metrics": list(planned.cell.metrics),
            "published": list(planned.cell.published),
        }
        for planned in chosen
    ]
    counts = {"runs": len(runs), "finished": len(runs) - len(rest), "lacking": absent, "estimate": found}
    return {**described(plan, seeds), "cells": cells, **counts}


def command(planned: PlannedCell) -> str:
    """Its run as one makes it by hand."""
    return shlex.join(["fedtailor", "run", planned.cell.row.method, *pairs(planned.settings)])


def reproduce(
    plan: Plan,
    seeds: Sequence[int],
    out: Path,
    jobs: int = 1,
    callback: ComparisonCallback = SILENT,
    tuned: Mapping[str, Tuned] | None = None,  # how the plan's rows came to their settings
) -> Summary:
    """Run what is not finished, and make the table. It has the cells of earlier calls too."""
    if absent := lacking(plan, fetch=True):
        told = "; ".join(f"{name}: {why}" for name, why in absent.items())
        raise UserError(f"{told}. Or choose cells that need none of it: --cells PATTERN")
    with locked(out):
        rest = left(plan, seeds, out)
        for group in groups(rest.values()):
            prepare(group, callback)
        placed = [(row_of(planned), run, out / place) for place, (planned, run) in rest.items()]
        for _ in run_all(placed, callback, jobs):
            pass
        summary = summarise(plan, seeds, out) | {"tuned": {line: it.row() for line, it in (tuned or {}).items()}}
        folder = out / plan.folder
        make_folder(folder)
        write_atomic(folder / "table.json", sealed(summary))
        write_atomic(folder / "table.md", as_markdown(summary).encode())
        write_atomic(folder / "table.csv", as_csv(summary).encode())
    return summary


def tune_rows(
    plan: Plan,
    grid: Mapping[str, Sequence[Any]],
    out: Path,
    jobs: int = 1,
    callback: ComparisonCallback = SILENT,
    **options: Any,
) -> dict[str, Tuned]:
    """Each row of each block at its own best values, chosen on validation pictures in the first column that is run; for
    `make_plan(…, tuned=…)`. What is tried is kept in the folder, under tune/, whatever table it is for."""
    first: dict[str, PlannedCell] = {}
    for planned in plan.cells:
        if planned.run is not None and planned.cell.name in plan.chosen and planned.run.method.value.trains:
            first.setdefault(line_of(planned.cell), planned)
    runs, names = [one.run for one in first.values() if one.run], [one.place(0).parts[1] for one in first.values()]
    with locked(out):
        found = tune(runs, grid, out / "tune", callback, jobs, names=names, **options)
    return {line: tuned for line, tuned in zip(first, found, strict=True) if tuned.chosen}


def row_of(planned: PlannedCell) -> ComparedRow:
    assert planned.run is not None
    return ComparedRow(planned.cell.name, {}, planned.run)


def groups(runs: Iterable[tuple[PlannedCell, Run]]) -> Iterator[list[tuple[ComparedRow, Run]]]:
    """Runs on one federation, one for each set of pictures and way into the towers: what has to be encoded."""
    seen, found = set[str](), dict[str, list[tuple[ComparedRow, Run]]]()
    for planned, run in runs:
        document = run.document()
        data = {key: value for key, value in document["data"].items() if key != "partition"}
        once = repr((data, document["backbone"], document["tuner"], run.method.name, run.labels.name))
        if once not in seen:
            seen.add(once)
            federation = repr((document["data"], document["backbone"], run.clients, run.seed))
            found.setdefault(federation, []).append((row_of(planned), run))
    yield from found.values()


# --- the result -----------------------------------------------------------------------------------------------------


def summarise(plan: Plan, seeds: Sequence[int], out: Path) -> Summary:
    """What `fedtailor reproduce --json` prints."""
    rows = [measured(plan, planned, seeds, out) for planned in plan.cells]
    rows = [averaged(planned.cell, row, plan, rows) for planned, row in zip(plan.cells, rows, strict=True)]
    shown = [row for row in rows if row["cell"] in plan.chosen or row["kind"]]
    versions = {"fedtailor": __version__, "torch": torch.__version__, "numpy": np.__version__}
    return {
        **described(plan, seeds),
        "cells": shown,
        "date": datetime.now(UTC).date().isoformat(),
        "versions": {**versions, "Python": platform.python_version()},
        "plot": drawn(plan.recipe, shown),
        "folder": str(out / plan.folder),
    }


def drawn(recipe: Recipe, rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The commands that draw the figure: of each block, or of each cell by its first seed."""
    parts: dict[str, list[str]] = {}
    for row in rows if recipe.figure else ():
        parts.setdefault(row["cell" if recipe.single else "block"], []).extend(
            row["runs"][: 1 if recipe.single else None]
        )
    some = dict.fromkeys(tuple(dict.fromkeys(folders)) for folders in parts.values() if folders)
    return [shlex.join(["fedtailor", "plot", *folders, "--figure", recipe.figure]) for folders in some]


def described(plan: Plan, seeds: Sequence[int]) -> Summary:
    recipe = plan.recipe
    head = {name: getattr(recipe, name) for name in ("name", "paper", "title", "shows", "figure")}
    scale = {"scale": plan.scale.name, "about_scale": plan.scale.about, "changed": plan.changed}
    return {**head, "notes": list(recipe.notes), **scale, "seeds": list(seeds)}


def measured(plan: Plan, planned: PlannedCell, seeds: Sequence[int], out: Path) -> dict[str, Any]:
    """A cell as a row of the summary, with its numbers if all its runs are there."""
    cell, run, found = planned.cell, planned.run, list[Summary]()
    places = {seed: out / planned.place(seed) for seed in seeds if run is not None}
    if run is not None and all((place / "result.json").is_file() for place in places.values()):
        found = [run_or_read(run.model_copy(update={"seed": seed}), place) for seed, place in places.items()]
    values = [spread([look_up(one, metric) for one in found]) for metric in cell.metrics]
    return {
        **where(cell),
        "command": "" if run is None else command(planned),
        "stands_in": planned.stands_in,
        "missing": planned.missing,
        "kind": kind_of(plan, planned) if found else "",
        "runs": [str(place) for place in places.values()] if found else [],
        "numbers": [
            number(m, p, v, plan.scale.name) for m, p, v in zip(cell.metrics, cell.published, values, strict=True)
        ],
    }


def where(cell: Cell) -> dict[str, Any]:
    parts = {"block": cell.block, "row": cell.row, "column": cell.column}
    return {"cell": cell.name, **{name: part.title for name, part in parts.items()}}


def number(metric: str, published: float | None, value: Mapping[str, float | None], scale: str) -> dict[str, Any]:
    """The difference is to numbers of the paper's own scale only: those of another say nothing about the print."""
    mean = value["mean"]
    gap = None if mean is None or published is None or scale != "paper" else round(mean - published, 4)
    return {"metric": metric, "published": published, "measured": mean, "std": value["std"], "difference": gap}


def look_up(summary: Summary, metric: str) -> float | None:
    part, _, name = metric.partition(".")
    return (summary[part] or {}).get(name)


def averaged(cell: Cell, row: dict[str, Any], plan: Plan, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The cell of a column that is the mean of others: only of all of them, and only where they are of one kind."""
    if not cell.column.mean:
        return row
    members = [
        one for other, one in zip((planned.cell for planned in plan.cells), rows, strict=True)
        if (other.block, other.row) == (cell.block, cell.row) and not other.column.mean
        and fnmatchcase(other.column.key, cell.column.mean)
    ]  # fmt: skip
    kinds = {one["kind"] for one in members}
    if len(kinds) != 1 or not all(kinds):
        gone = [one["column"] for one in members if one["missing"]]
        why = f"a mean of columns of which {', '.join(gone)} cannot be had" if gone else ""
        return {**row, "missing": why or ("a mean of several kinds of number" if all(kinds) else "")}
    means = [spread([one["numbers"][i]["measured"] for one in members])["mean"] for i in range(len(cell.metrics))]
    values = [{"mean": mean, "std": None} for mean in means]
    numbers = [number(m, p, v, plan.scale.name) for m, p, v in zip(cell.metrics, cell.published, values, strict=True)]
    return {**row, "kind": kinds.pop(), "numbers": numbers}
