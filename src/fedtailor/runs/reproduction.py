"""A table or figure of a paper, cell by cell, with what is printed beside what is measured.

Three kinds of number are never mixed: published (the paper's), and measured ones, which are `reproduced` (the print to
the letter: its backbone by hub id, its data, nothing changed) or `lab` or `smoke` (scales.toml), or `changed`.

A folder holds any number of tables: runs/ has each run once, whatever cells and tables it belongs to, costs.json what
was measured to tell beforehand how long it takes, and PAPER/NAME/SCALE/ the table as md, csv and json. If it is killed,
the same command goes on: finished runs are read, those that were stopped are resumed.
"""

import hashlib
import json
import platform
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..base.errors import UserError
from ..base.files import write_atomic
from ..base.keys import flat
from ..base.version import __version__
from ..clip.load import HUB_FILES, locate
from ..data import default_root, find_source
from ..report.reproduction import as_csv, as_markdown
from ..settings.keys import full_keys
from ..settings.run import Run, make_run
from .callback import ComparisonCallback
from .comparison import SILENT, Summary, as_json, locked, prepare, run_all, run_or_read, spread
from .comparison_spec import ComparedRow, pairs
from .costs import UNCERTAIN, estimate
from .table_recipe import Cell, Recipe, Scale, read, read_scale, stand_in

# Where a run is made and how fast, not what is run.
HARMLESS = {"data.root", "backbone.device", "threads", "memory.budget_gb"}
Settings = Mapping[str, Any]


@dataclass(frozen=True)
class PlannedCell:
    cell: Cell
    run: Run | None  # its settings at this scale, but for the seed; None: there is none to make
    settings: Settings = field(default_factory=dict)  # as given: the rest is the method's and its preset's
    missing: str = ""
    stands_in: str = ""  # what is other than in print: "dtd → cifar100"

    def place(self, seed: int) -> Path:
        """Its run's, under the folder. Equal runs have the same, whatever table they are in."""
        assert self.run is not None
        settings = {key: value for key, value in self.run.document().items() if key != "seed"}
        mark = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:12]
        return Path("runs") / f"{self.run.method.name}-{self.run.data.name}-{mark}" / f"seed-{seed}"


@dataclass(frozen=True)
class Plan:
    recipe: Recipe
    scale: Scale
    cells: tuple[PlannedCell, ...]  # all of them
    chosen: frozenset[str]  # the names of those to run
    changes: Settings = field(default_factory=dict)

    @cached_property
    def changed(self) -> list[str]:
        """The user's settings that make it another experiment."""
        return pairs({key: value for key, value in self.changes.items() if key not in HARMLESS})

    @property
    def folder(self) -> Path:
        """Of its tables. One with changes is another one."""
        mark = hashlib.sha256(" ".join(sorted(self.changed)).encode()).hexdigest()[:8]
        return Path(self.recipe.name) / (f"{self.scale.name}-changed-{mark}" if self.changed else self.scale.name)

    def runs(self, seeds: Sequence[int]) -> dict[Path, tuple[PlannedCell, Run]]:
        """Every run of the chosen cells once, by its place; seed by seed, so that all cells have a number early."""
        planned = [p for p in self.cells if p.run is not None and p.cell.name in self.chosen]
        return {p.place(s): (p, p.run.model_copy(update={"seed": s})) for s in seeds for p in planned if p.run}


def make_plan(
    recipe: str | Recipe,
    scale: str = "paper",
    patterns: Sequence[str] = (),
    changes: Settings | None = None,
    tuned: Mapping[str, Settings] | None = None,
) -> Plan:
    """Every cell resolved and checked. `changes` are settings for all of them; `tuned` are rows' own, by row, chosen on
    validation data at this scale."""
    table, given, at = read(recipe) if isinstance(recipe, str) else recipe, full_keys(changes or {}), read_scale(scale)
    if "seed" in given or "method.name" in given:
        raise UserError("the recipe names the methods, and --seeds 3 or --seeds 5,7 the seeds; leave method= and seed=")
    names = {name for cell in table.cells if (name := cell.settings.get("data.name"))}
    chosen, found = frozenset(cell.name for cell in table.choose(patterns)), list[PlannedCell]()
    for cell in table.cells:
        try:
            own = full_keys((tuned or {}).get(cell.row.key, {}))
            found.append(plan_cell(cell, at, names, {**own, **given}))
        except UserError as error:
            if cell.name in chosen:
                hint = "; to change some cells only, choose them: --cells PATTERN" if given else ""
                raise UserError(f"{cell.name}: {error}{hint}") from error
            found.append(PlannedCell(cell, None, missing=str(error)))  # none of today's business
    return Plan(table, at, tuple(found), chosen, given)


def plan_cell(cell: Cell, scale: Scale, tables: set[str], last: Settings) -> PlannedCell:
    if cell.missing or cell.column.mean:
        return PlannedCell(cell, None, missing=cell.missing)
    printed = make_run(cell.row.method, cell.settings)
    settings, changed = dict(cell.settings), list[str]()
    if scale.name != "paper":
        data, backbone = stand_in(printed.data.name, scale.data), stand_in(printed.backbone.name, scale.backbone)
        why = scale.without.get(printed.data.name, "")
        if scale.distinct and data != printed.data.name and data in tables:
            why = f"{data} would stand in for it, which the table has itself"
        if why:
            return PlannedCell(cell, None, missing=f"not at scale {scale.name}: {printed.data.name}: {why}")
        document = flat(printed.document())
        settings |= {**scale.settings, "data.name": data, "backbone.name": backbone}
        for when, then in scale.rules:
            settings |= then if all(document.get(key) == value for key, value in when.items()) else {}
        names = ((printed.data.name, data), (printed.backbone.name, backbone))
        changed = [f"{old} → {new}" for old, new in names if old != new]
    settings |= last
    return PlannedCell(cell, make_run(cell.row.method, settings), settings, stands_in=", ".join(changed))


# --- what kind of number --------------------------------------------------------------------------------------------


def kind_of(plan: Plan, planned: PlannedCell) -> str:
    """`reproduced` for the print to the letter alone."""
    changed, run = list(plan.changed), planned.run
    if plan.scale.name != "paper":
        return ", ".join([plan.scale.name, *([f"changed: {' '.join(changed)}"] if changed else [])])
    if run is not None:
        backbone = planned.cell.settings.get("backbone.name")
        if run.backbone.name != backbone and "backbone.name" not in plan.changes:
            changed.append(f"backbone: the folder {run.backbone.name}, not the hub's")
        if problem := unlike_published(run.data.name, run.data.root):
            changed.append(problem)
    return f"changed: {' '.join(changed)}" if changed else "reproduced"


@cache
def unlike_published(data: str, root: str) -> str:
    """What is other about this data than in print."""
    source = find_source(data)
    if source.sizes is None:
        return f"data: {data} has no published split"
    dataset = source.load(Path(root) if root else default_root())
    sizes = len(dataset.train), len(dataset.test)
    return "" if sizes == source.sizes else f"data: {data} has {sizes} pictures, as published {source.sizes}"


def lacking(plan: Plan, fetch: bool = False) -> dict[str, str]:
    """What this machine lacks for the chosen cells, and what to do about it; with `fetch`, beyond what the hub has."""
    runs, found = [run for _, run in plan.runs([0]).values()], dict[str, str]()
    for name, root in dict.fromkeys((run.data.name, run.data.root) for run in runs):
        try:
            find_source(name).load(Path(root) if root else default_root())
        except UserError as error:
            found[f"data={name}"] = str(error)
    for name in dict.fromkeys(run.backbone.name for run in runs):
        if problem := "" if fetch and is_hub_id(name) else backbone_problem(name):
            found[f"backbone={name}"] = problem
    return found


def is_hub_id(name: str) -> bool:
    return bool(re.fullmatch(r"[\w.-]+/[\w.-]+", name)) and not Path(name).exists()


def backbone_problem(name: str) -> str:
    """Why it cannot be opened without being fetched."""
    try:
        if not is_hub_id(name):
            locate(name)
            return ""
        from huggingface_hub import snapshot_download

        snapshot_download(name, allow_patterns=HUB_FILES, local_files_only=True)
    except UserError as error:
        return str(error)
    except ImportError:
        return "it is a hub id: pip install 'fedtailor[hub]'"
    except Exception:  # the hub raises a dozen unrelated kinds
        return "it is not in the hub's cache here; it is fetched when a run needs it"
    return ""


# --- running --------------------------------------------------------------------------------------------------------


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
    plan: Plan, seeds: Sequence[int], out: Path, jobs: int = 1, callback: ComparisonCallback = SILENT
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
        summary = summarise(plan, seeds, out)
        folder = out / plan.folder
        folder.mkdir(parents=True, exist_ok=True)
        write_atomic(folder / "table.json", as_json(summary))
        write_atomic(folder / "table.md", as_markdown(summary).encode())
        write_atomic(folder / "table.csv", as_csv(summary).encode())
    return summary


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
    folders = list(dict.fromkeys(folder for row in shown for folder in row["runs"]))
    return {
        **described(plan, seeds),
        "cells": shown,
        "date": datetime.now(UTC).date().isoformat(),
        "versions": {**versions, "Python": platform.python_version()},
        "plot": shlex.join(["fedtailor", "plot", *folders, "--figure", plan.recipe.figure])
        if plan.recipe.figure
        else "",
        "folder": str(out / plan.folder),
    }


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
