"""The papers' tables and figures as recipes, recipes/tables/PAPER/NAME.toml: runs, numbers to show, what is printed.

A table is blocks of rows and columns. Each part brings settings, spelled as on the command line (`with`; a row's begin
with its method), and each cell shows one or more numbers of its run (`metrics`). Later ones win: the table's, the
block's, the column's, the row's, and those of `cells`, which are for cells whose name fits a pattern. `published` has a
row's printed numbers, column by column; nan is not printed. A column with a `mean` is that of others, by a pattern.
`missing` says why a part cannot be had. scales.toml says how all this is run with less. No torch is loaded here.
"""

import math
import shlex
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cache
from importlib import resources
from typing import Any

from ..base.errors import UserError, unknown
from ..settings.keys import parse

PAPERS = {
    "capt": "CAPT (Hou et al., CVPR 2025)",
    "fedcopl": "FedCoPL (Guo et al., ICCV 2025)",
    "fedpurel": "FedPuReL (Hou et al. 2026), supplement",
}
SCALES = ("paper", "lab", "smoke")
FOLDER = resources.files("fedtailor") / "recipes" / "tables"
Settings = Mapping[str, Any]


@dataclass(frozen=True)
class Part:
    """A block, a row or a column."""

    key: str = ""
    title: str = ""
    method: str = ""  # of a row
    settings: Settings = field(default_factory=dict)
    metrics: tuple[str, ...] = ()  # of a row that shows others than the table's
    mean: str = ""  # of a column: the mean of those with such keys
    missing: str = ""


@dataclass(frozen=True)
class Cell:
    name: str
    block: Part
    row: Part
    column: Part
    metrics: tuple[str, ...]  # `part.number` each
    published: tuple[float | None, ...]  # one for each; None: not printed
    settings: Settings
    missing: str


@dataclass(frozen=True)
class Recipe:
    name: str  # capt/table1
    title: str
    shows: str
    notes: tuple[str, ...]
    figure: str  # how `fedtailor plot` calls it; empty: a table
    single: bool  # a figure for each run, not for all of a block
    cells: tuple[Cell, ...]

    @property
    def paper(self) -> str:
        return PAPERS[self.name.partition("/")[0]]

    @property
    def missing(self) -> list[str]:
        """Why some of it cannot be had."""
        return list(dict.fromkeys(cell.missing for cell in self.cells if cell.missing))

    @property
    def printed(self) -> int:
        """How many published numbers it has."""
        return sum(number is not None for cell in self.cells for number in cell.published)

    def choose(self, patterns: Sequence[str]) -> tuple[Cell, ...]:
        """The cells of such names; all if there is no pattern."""
        for pattern in patterns:
            if not any(fnmatchcase(cell.name, pattern) for cell in self.cells):
                raise UserError(
                    f"--cells {pattern}: no cell of {self.name} has such a name; {self.cells[0].name} is one"
                )
        return tuple(c for c in self.cells if not patterns or any(fnmatchcase(c.name, p) for p in patterns))


def names() -> list[str]:
    """Of every recipe: paper by paper, tables before figures."""
    found = [f"{paper}/{file.name.removesuffix('.toml')}" for paper in PAPERS for file in (FOLDER / paper).iterdir()]
    return sorted(found, key=lambda name: (name.partition("/")[0], "/fig" in name, name))


def catalogue() -> list[dict[str, Any]]:
    """What `fedtailor reproduce` lists."""
    return [
        {
            "name": recipe.name, "paper": recipe.paper, "title": recipe.title, "shows": recipe.shows,
            "cells": len(recipe.cells), "published": recipe.printed, "figure": recipe.figure, "missing": recipe.missing,
        }
        for recipe in map(read, names())
    ]  # fmt: skip


@cache
def read(name: str) -> Recipe:
    if name not in names():
        raise unknown("recipe", name, names(), "fedtailor reproduce")
    document = tomllib.loads((FOLDER / f"{name}.toml").read_text())
    return Recipe(
        name, document["title"], document["shows"], tuple(document.get("notes", ())), document.get("figure", ""),
        document.get("single", False),
        tuple(cells(document)),
    )  # fmt: skip


def cells(document: Mapping[str, Any]) -> Iterator[Cell]:
    rows, columns, blocks = (
        [part(key, given) for key, given in document.get(axis, {"": {}}).items()]
        for axis in ("rows", "columns", "blocks")
    )
    special = {pattern: words(text)[1] for pattern, text in document.get("cells", {}).items()}
    common = words(document.get("with", ""))[1]
    for block in blocks:
        given = document["blocks"][block.key] if block.key else document
        for row in rows:
            metrics = tuple(full(name) for name in row.metrics or document["metrics"])
            printed = given.get("published", {}).get(row.key) or [math.nan] * len(metrics) * len(columns)
            if len(printed) != len(metrics) * len(columns):
                raise ValueError(f"{block.key}/{row.key}: {len(printed)} published numbers")
            numbers = [None if math.isnan(number) else float(number) for number in printed]
            for i, column in enumerate(columns):
                name = "/".join(filter(None, (block.key, row.key, column.key)))
                own = {k: v for p, more in special.items() if fnmatchcase(name, p) for k, v in more.items()}
                settings = {**common, **block.settings, **column.settings, **row.settings, **own}
                shown = tuple(numbers[i * len(metrics) : (i + 1) * len(metrics)])
                missing = block.missing or row.missing or column.missing
                yield Cell(name, block, row, column, metrics, shown, settings, missing)


def part(key: str, given: Mapping[str, Any]) -> Part:
    method, settings = words(given.get("with", ""))
    metrics, told = tuple(given.get("metrics", ())), {name: given.get(name, "") for name in ("mean", "missing")}
    return Part(key, given.get("title", key), method, settings, metrics, **told)


def words(text: str) -> tuple[str, dict[str, Any]]:
    """A method, if the first word is one, and settings."""
    found = shlex.split(text)
    method = found.pop(0) if found and "=" not in found[0] else ""
    return method, parse(found)


def full(metric: str) -> str:
    """The global model's, if it does not say whose."""
    return metric if "." in metric else f"global.{metric}"


# --- scales ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rule:
    """For runs that, at the scale of the paper, have these settings: others, or why there is none."""

    when: Settings
    then: Settings
    missing: str = ""


@dataclass(frozen=True)
class Scale:
    name: str
    about: str = "as printed"
    settings: Settings = field(default_factory=dict)
    backbone: Mapping[str, str] = field(default_factory=dict)  # by patterns of the print's: what stands in
    data: Mapping[str, str] = field(default_factory=dict)
    without: Mapping[str, str] = field(default_factory=dict)  # datasets without a stand-in, and why
    distinct: bool = False
    rules: tuple[Rule, ...] = ()


@cache
def read_scale(name: str) -> Scale:
    if name not in SCALES:
        raise unknown("scale", name, SCALES)
    given = tomllib.loads((FOLDER / "scales.toml").read_text()).get(name, {})
    rules = tuple(
        Rule(words(rule["when"])[1], words(rule.get("with", ""))[1], rule.get("missing", ""))
        for rule in given.pop("rules", ())
    )
    return Scale(name, settings=words(given.pop("with", ""))[1], rules=rules, **given)


def stand_in(name: str, known: Mapping[str, str]) -> str:
    """What is taken in its place; itself if nothing is."""
    return next((other for pattern, other in known.items() if fnmatchcase(name, pattern)), name)
