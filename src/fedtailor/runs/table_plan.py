"""What a reproduction runs: each cell of a recipe at a scale, what is lacking for it, and which kind its numbers are.

Three kinds of number are never mixed: published (the paper's), and measured ones, which are `reproduced` (the print to
the letter: its backbone by hub id, its data, nothing changed) or `lab` or `smoke` (scales.toml), or `changed`.
"""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from ..base.errors import UserError
from ..base.keys import flat
from ..clip.load import HUB_FILES, locate
from ..data import default_root, find_source
from ..settings.keys import full_keys
from ..settings.run import Run, make_run
from .comparison_spec import pairs
from .table_recipe import Cell, Recipe, Scale, read, read_scale, stand_in

# Where a run is made and how fast, not what is run.
BACKBONE = "backbone.name"
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
        name = re.sub(r"[^\w.+-]+", "-", f"{self.run.method.name}-{self.run.data.name}")
        return Path("runs") / f"{name}-{mark}" / f"seed-{seed}"


@dataclass(frozen=True)
class Plan:
    recipe: Recipe
    scale: Scale
    cells: tuple[PlannedCell, ...]  # all of them
    chosen: frozenset[str]  # the names of those to run
    changes: Settings = field(default_factory=dict)
    tuned: bool = False  # rows have settings of their own

    @cached_property
    def changed(self) -> list[str]:
        """The user's settings that make it another experiment. Another CLIP of the same scale does not."""
        return pairs({k: v for k, v in self.changes.items() if k not in HARMLESS and (k, v) != (BACKBONE, self.other)})

    @property
    def other(self) -> str | None:
        """A CLIP of this scale that the user chose."""
        chosen = self.changes.get(BACKBONE)
        return str(chosen) if chosen in self.scale.backbone.values() else None

    @property
    def folder(self) -> Path:
        """Of its tables. One with changes is another one."""
        mark = hashlib.sha256(" ".join(sorted(self.changed)).encode()).hexdigest()[:8]
        clip = (self.other or "").removeprefix(f"{self.scale.name}-")
        words = [self.scale.name, clip, "tuned" if self.tuned else "", f"changed-{mark}" if self.changed else ""]
        return Path(self.recipe.name) / "-".join(filter(None, words))

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
    """Every cell resolved and checked. `changes` are settings for all of them; `tuned` are rows' own, by row, or by
    block and row (`line_of`), chosen on validation data at this scale."""
    table, given, at = read(recipe) if isinstance(recipe, str) else recipe, full_keys(changes or {}), read_scale(scale)
    if "seed" in given or "method.name" in given:
        raise UserError("the recipe names the methods, and --seeds 3 or --seeds 5,7 the seeds; leave method= and seed=")
    if tuned and scale == "paper":
        raise UserError(
            "at scale paper the rates are the print's; tuned rows are for the scale that they were tuned at"
        )
    names = {name for cell in table.cells if (name := cell.settings.get("data.name"))}
    chosen, found = frozenset(cell.name for cell in table.choose(patterns)), list[PlannedCell]()
    for cell in table.cells:
        try:
            own = {k: v for line in (cell.row.key, line_of(cell)) for k, v in (tuned or {}).get(line, {}).items()}
            found.append(plan_cell(cell, at, names, {**full_keys(own), **given}))
        except UserError as error:
            if cell.name in chosen:
                hint = "; to change some cells only, choose them: --cells PATTERN" if given else ""
                raise UserError(f"{cell.name}: {error}{hint}") from error
            found.append(PlannedCell(cell, None, missing=str(error)))  # none of today's business
    return Plan(table, at, tuple(found), chosen, given, bool(tuned))


def line_of(cell: Cell) -> str:
    """The row of a block that it is in."""
    return "/".join(filter(None, (cell.block.key, cell.row.key)))


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
        for rule in scale.rules:
            if all(document.get(key) == value for key, value in rule.when.items()):
                settings |= rule.then
                if rule.missing:
                    return PlannedCell(cell, None, missing=f"not at scale {scale.name}: {rule.missing}")
        used = {**settings, **last}
        names = ((printed.data.name, used["data.name"]), (printed.backbone.name, used[BACKBONE]))
        changed = [f"{old} → {new}" for old, new in names if old != new]
    settings |= last
    return PlannedCell(cell, make_run(cell.row.method, settings), settings, stands_in=", ".join(changed))


# --- what kind of number --------------------------------------------------------------------------------------------


def kind_of(plan: Plan, planned: PlannedCell) -> str:
    """`reproduced` for the print to the letter alone."""
    changed, run = list(plan.changed), planned.run
    if plan.scale.name != "paper":
        more = [*(["tuned"] if plan.tuned else []), *([f"changed: {' '.join(changed)}"] if changed else [])]
        return ", ".join([plan.scale.name, *more])
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
