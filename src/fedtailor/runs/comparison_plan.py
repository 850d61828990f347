"""A comparison at one point or at many: axes of settings, what is tuned at each, and the file that says so."""

import json
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from ..base.documents import read_json
from ..base.errors import UserError, unknown
from ..base.keys import flat
from ..base.version import __version__
from ..evaluation.metrics import METRICS
from ..settings.keys import SHORT, full_keys, parse_value
from ..settings.run import Run, make_run
from .comparison_spec import (
    NOTE,
    ComparedRow,
    ComparisonSpec,
    RowSpec,
    Seeds,
    difference,
    folder_names,
    label,
    make_spec,
    read_seeds,
    short_key,
)
from .tuning import Tuning

Axes = dict[str, list[Any]]  # by full keys
NUMBERS = ("last", "last10", "best")


@dataclass(frozen=True)
class Point:
    """Where on each axis, and the comparison there; without axes, there is one point that is nowhere."""

    at: dict[str, Any]
    spec: ComparisonSpec


@dataclass(frozen=True)
class ComparisonPlan:
    points: tuple[Point, ...]
    axes: Axes = field(default_factory=dict)
    tuning: Tuning | None = None

    @classmethod
    def of(cls, spec: ComparisonSpec) -> "ComparisonPlan":
        return cls((Point({}, spec),))

    @property
    def first(self) -> ComparisonSpec:
        return self.points[0].spec

    @property
    def seeds(self) -> tuple[int, ...]:
        return self.first.seeds

    @property
    def folders(self) -> list[str]:
        """Each point's, in the comparison's; the comparison's own, if there are no axes."""
        return folder_names([label("", point.at) for point in self.points])

    def runs(self) -> Iterator[tuple[int, ComparedRow, Run, Path]]:
        """Every run, with the number of its point and its place. Seed by seed: all have a result early."""
        for seed in self.seeds:
            for i, (point, folder) in enumerate(zip(self.points, self.folders, strict=True)):
                for row, run, place in replace(point.spec, seeds=(seed,)).runs():
                    yield i, row, run, folder / place

    @property
    def command(self) -> str:
        return " ".join([self.first.command, shlex.join([*over_words(self.axes), *tune_words(self.tuning)])]).strip()

    def note(self) -> dict[str, Any]:
        """For compare.json."""
        tuning = {"tuning": asdict(self.tuning)} if self.tuning else {}
        if not self.axes:
            return {**self.first.note(), **tuning}
        points = [
            {"at": point.at, "folder": folder, "rows": point.spec.note()["rows"]}
            for point, folder in zip(self.points, self.folders, strict=True)
        ]
        shared = {key: value for key, value in self.first.note().items() if key != "rows"}
        return {**shared, "axes": self.axes, **tuning, "points": points}


@dataclass(frozen=True)
class Shown:
    """How a comparison is shown."""

    number: str = "last"
    sort: str | None = None  # the column to sort by
    show: str | None = None  # over axes: the one column that is shown
    against: str | None = None  # the row that the others are compared with

    def check(self, plan: ComparisonPlan) -> None:
        """Before anything is run."""
        if self.number not in NUMBERS:
            raise unknown("number", self.number, NUMBERS)
        for what, name in (("sort", self.sort), ("show", self.show)):
            if name is not None and name not in METRICS:
                raise unknown(what, name, METRICS)
        if self.show and not plan.axes:
            raise UserError(f"--show {self.show}: without --over the table shows every column")
        if self.against is not None and self.against not in (titles := [row.title for row in plan.first.rows]):
            raise unknown("row", self.against, titles)


def make_plan(
    methods: Sequence[RowSpec],
    settings: Mapping[str, Any],
    seeds: Seeds | None = None,
    over: Mapping[str, Sequence[Any]] | None = None,
    tuning: Tuning | None = None,
) -> ComparisonPlan:
    """Every row at every point, resolved and checked to be comparable there."""
    shared, axes = full_keys(settings), {key: list(values) for key, values in full_keys(over or {}).items()}
    for key, values in axes.items():
        if key in ("seed", "seeds", "method.name"):
            advice = "name the methods one by one" if key == "method.name" else "give --seeds"
            raise UserError(f"{short_key(key)} is no axis; {advice}")
        if len(values) < 2 or any(value in values[:i] for i, value in enumerate(values)):
            raise UserError(f"--over {short_key(key)}={values}: give two values or more, none of them twice")
    for key in [*axes, *(tuning.grid if tuning else ())]:
        if key in shared or (tuning and key in axes and key in tuning.grid):
            raise UserError(f"{short_key(key)} is given twice; it is set, an axis (--over) or chosen (--tune)")
    if tuning and "data.validation" in shared:
        raise UserError("--tune holds out validation pictures itself, while it chooses; say how many by --validation")
    points = []
    for place in product(*axes.values()):
        at = dict(zip(axes, place, strict=True))
        spec = make_spec(methods, {**shared, **at}, seeds)
        if own := [f"{row.title} sets {short_key(key)}" for row in spec.rows for key in at if key in row.own]:
            raise UserError(f"{own[0]}, which is an axis (--over) for all rows")
        points.append(Point(at, replace(spec, settings={k: v for k, v in spec.settings.items() if k not in at})))
    made = ComparisonPlan(tuple(points), axes, tuning)
    if tuning:
        check_tuning(made.first, tuning)
    return made


def check_tuning(spec: ComparisonSpec, tuning: Tuning) -> None:
    chosen = [tuning.of(row.run, row.own).grid for row in spec.rows]
    for key in tuning.grid:
        if not any(key in grid for grid in chosen):
            raise UserError(f"--tune {short_key(key)}: no row has this key to choose (fedtailor show METHOD)")
    for row in spec.rows:
        for _ in tuning.of(row.run, row.own).trials(row.run):
            pass  # a value that is wrong shows here


def from_words(
    rows: Sequence[str],
    settings: Mapping[str, Any],
    seeds: Seeds | None,
    over: Iterable[str],  # KEY=VALUE,VALUE each
    tune: Iterable[str],
    options: Mapping[str, Any],  # of Tuning, where they are given
) -> ComparisonPlan:
    grid, given = read_values(tune, "--tune"), {key: value for key, value in options.items() if value is not None}
    if given and not grid:
        raise UserError("what decides how to choose goes with --tune KEY=VALUE,VALUE; say what to choose")
    if "seeds" in given:
        given["seeds"] = read_seeds(given["seeds"])
    tuning = Tuning(grid, **given) if grid else None
    return make_plan(rows, settings, seeds, read_values(over, "--over"), tuning)


def read_values(words: Iterable[str], option: str) -> Axes:
    """`data.alpha=0.1,0.5` as an axis; a comma in brackets belongs to a list."""
    made: Axes = {}
    for word in words:
        key, equals, text = word.partition("=")
        full = SHORT.get(key, key)
        if not equals or not key or not text:
            raise UserError(f"{option} {word}: write {option} KEY=VALUE,VALUE, for example {option} data.alpha=0.1,0.5")
        if full in made:
            raise UserError(f"{option} {key} is given twice")
        made[full] = [parse_value(value.strip()) for value in re.split(r",(?![^\[]*\])", text)]
    return made


def over_words(axes: Axes, option: str = "--over") -> list[str]:
    """As on the command line."""
    made = []
    for key, values in axes.items():
        texts = (value if isinstance(value, str) else json.dumps(value) for value in values)
        made.append(f"{option}={short_key(key)}={','.join(texts)}")
    return made


def tune_words(tuning: Tuning | None) -> list[str]:
    if tuning is None:
        return []
    plain, seeds = Tuning({}), ",".join(map(str, tuning.seeds))
    given = {
        "--tune-by": tuning.by != plain.by and tuning.by,
        "--tune-seeds": tuning.seeds != plain.seeds and (seeds if "," in seeds else f"{seeds},"),
        "--tune-rounds": tuning.rounds,
        "--validation": tuning.validation != plain.validation and tuning.validation,
    }
    return [*over_words(tuning.grid, "--tune"), *(f"{option}={value}" for option, value in given.items() if value)]


class NotedRow(BaseModel):
    method: str
    settings: dict[str, Any]
    run: dict[str, Any]


class NotedPoint(BaseModel):
    at: dict[str, Any]
    rows: list[NotedRow]


class Noted(BaseModel):
    """compare.json, as far as it says what to run."""

    settings: dict[str, Any] | None = None
    seeds: list[int] | None = None
    rows: list[NotedRow] | None = None
    points: list[NotedPoint] | None = None
    axes: dict[str, list[Any]] | None = None
    tuning: dict[str, Any] | None = None


def load_plan(folder: Path) -> tuple[ComparisonPlan, Shown]:
    """The comparison in a folder, and how it was shown last."""
    path = folder / NOTE
    if not path.is_file():
        raise UserError(f"{folder} is not a comparison's folder: it has no {NOTE}")
    note = read_json(path, "compare anew, in another folder", Noted)
    if lacking := {"version", "settings", "seeds", "points" if "axes" in note else "rows", "number"} - set(note):
        raise UserError(f"{path} is damaged: it lacks {', '.join(sorted(lacking))}")
    if note["version"] != __version__:
        versions = f"{folder} was written by fedtailor {note['version']}, this is {__version__}"
        raise UserError(f"{versions}; compare anew, in another folder")

    def spec(rows: Sequence[Mapping[str, Any]]) -> ComparisonSpec:
        made = [ComparedRow(row["method"], row["settings"], make_run(settings=flat(row["run"]))) for row in rows]
        return ComparisonSpec(tuple(made), note["settings"], tuple(note["seeds"]))

    points = [Point(it["at"], spec(it["rows"])) for it in note.get("points", [{"at": {}, "rows": note.get("rows")}])]
    tuning = Tuning(**note["tuning"]) if "tuning" in note else None
    shown = Shown(**{key: note[key] for key in ("number", "sort", "show", "against") if key in note})
    return ComparisonPlan(tuple(points), note.get("axes", {}), tuning), shown


def plan_difference(there: ComparisonPlan, here: ComparisonPlan) -> str:
    """The first difference between a folder's comparison and this one, in words; seeds may be added."""
    if there.axes != here.axes or there.tuning != here.tuning:
        old, new = (" ".join([*over_words(plan.axes), *tune_words(plan.tuning)]) for plan in (there, here))
        return f"it has {old or 'no --over or --tune'}, not {new or 'none'}"
    found = (difference(old.spec, new.spec) for old, new in zip(there.points, here.points, strict=True))
    return next(filter(None, found), "")
