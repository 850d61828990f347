"""Several methods on one federation, with the same cohorts and first parameters, over the same seeds; or on several.

A comparison's folder has compare.json (the plan, resolved), a run folder for each row and seed, under tune/ those that
settings were chosen by, and at the end the table in several formats. With axes, every point has such a folder of its
own. If it is killed, at whatever moment, the same command continues it: finished runs are read, the one that was
stopped is resumed, the others are run.
"""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any

from ..base.documents import sealed
from ..base.errors import UserError
from ..base.files import FolderLock, make_folder, write_atomic
from ..report.comparison_formats import FORMATS
from ..settings.run import Run
from .callback import ComparisonCallback
from .comparison_plan import ComparisonPlan, Shown, load_plan, make_plan, plan_difference
from .comparison_spec import NOTE, ComparisonSpec, RowSpec, Seeds
from .comparison_summary import Found, summarise
from .many import SILENT, PlacedRun, Summary, prepare, run_all, run_or_read, unfinished
from .tuning import Tuned, Tuning, trial_runs, tune_each

__all__ = ["Comparison", "PlacedRun", "compare", "prepare", "run_all", "run_or_read"]


@dataclass(frozen=True)
class Comparison:
    """`summary` is what `fedtailor compare --json` prints; `runs` are the summaries of each row's runs, by title; with
    axes, of the first point, and `points` has all."""

    summary: Summary
    runs: dict[str, list[Summary]]
    folder: Path | None = None
    points: Sequence[dict[str, list[Summary]]] = ()


def compare(
    methods: Sequence[RowSpec] | ComparisonSpec | ComparisonPlan,
    settings: Mapping[str, Any] | None = None,
    /,
    *,
    seeds: Seeds | None = None,
    number: str = "last",
    out: str | PathLike[str] | None = None,
    callback: ComparisonCallback = SILENT,
    sort: str | None = None,
    jobs: int = 1,
    over: Mapping[str, Sequence[Any]] | None = None,
    tune: Mapping[str, Sequence[Any]] | Tuning | None = None,
    show: str | None = None,
    against: str | None = None,
    **more: Any,
) -> Comparison:
    """Compare methods. Settings apply to all of them; a method's own stand with it. `seeds=3` means 0, 1 and 2.

    `sort="overall"` puts the best row first; `jobs=2` makes two runs at a time, each in its own process. Runs that the
    folder `out` already has are read or resumed; without a folder nothing is kept. `over={"data.alpha": [0.1, 0.5]}`
    compares at each of these points, `tune={"lr": [1e-3, 1e-2]}` gives each row its own best, by validation.

    compare(["promptfl", "promptprox:method.mu=0.1", ("fedavg", {"tuner": "lora"})], {"data.alpha": 0.5}, seeds=3)
    """
    given = {**(settings or {}), **more}
    if isinstance(methods, ComparisonSpec | ComparisonPlan):
        if given or seeds is not None or over or tune:
            raise UserError(f"a {type(methods).__name__} is complete; give further settings to what makes it")
        plan = ComparisonPlan.of(methods) if isinstance(methods, ComparisonSpec) else methods
    else:
        tuning = Tuning({key: list(values) for key, values in tune.items()}) if isinstance(tune, Mapping) else tune
        plan = make_plan(methods, given, seeds, over, tuning)
    shown = Shown(number, sort, show, against)
    shown.check(plan)
    if jobs < 1:
        raise UserError(f"jobs={jobs}: 1 or more runs at a time")
    folder = None if out is None else Path(out)
    if folder is not None:
        check_folder(plan, folder)
    cases, names = tuning_cases(plan)
    trials = [run for case in trial_runs(cases, folder, names) for _, runs in case for run in runs]
    placed = [(row, run, folder and folder / place) for _, row, run, place in plan.runs()]
    prepare(unfinished([*trials, *placed]), callback)
    with nullcontext() if folder is None else locked(folder):
        if folder is not None:
            write_atomic(folder / NOTE, sealed({**plan.note(), **asdict(shown)}))
        tuned = tune_each(cases, folder, names, callback, jobs)
        best = with_best(plan, tuned) if tuned else plan
        found = run_plan(best, folder, callback, jobs)
        summary = summarise(best, found, shown, folder, tuned)
        if folder is not None:
            write_tables(summary, folder)
    runs = [{title: [run for run, _ in its] for title, its in point.items()} for point in found]
    return Comparison(summary, runs[0], folder, runs)


def tuning_cases(plan: ComparisonPlan) -> tuple[list[tuple[Run, Tuning]], list[str]]:
    """What there is to choose for every row at every point, and the folder for it."""
    if plan.tuning is None:
        return [], []
    places = zip(plan.points, plan.folders, strict=True)
    names = [str(Path(folder) / "tune" / row) for point, folder in places for row in point.spec.folders]
    return [(row.run, plan.tuning.of(row.run, row.own)) for point in plan.points for row in point.spec.rows], names


def with_best(plan: ComparisonPlan, tuned: Sequence[Tuned]) -> ComparisonPlan:
    best, points = iter(tuned), []
    for point in plan.points:
        rows = tuple(replace(row, run=next(best).run) for row in point.spec.rows)
        points.append(replace(point, spec=replace(point.spec, rows=rows)))
    return replace(plan, points=tuple(points))


def run_plan(plan: ComparisonPlan, folder: Path | None, callback: ComparisonCallback, jobs: int) -> list[Found]:
    found: list[Found] = [{row.title: [] for row in point.spec.rows} for point in plan.points]
    runs = list(plan.runs())
    placed: list[PlacedRun] = [(row, run, folder and folder / place) for _, row, run, place in runs]
    results = run_all(placed, callback, jobs)
    for (i, *_), (row, _, place), result in zip(runs, placed, results, strict=True):
        found[i][row.title].append((result, place))
    return found


def write_tables(summary: Summary, folder: Path) -> None:
    write_atomic(folder / "table.json", sealed(summary))
    for suffix, write in FORMATS.items():
        write_atomic(folder / f"table.{suffix}", write(summary).encode())


def locked(folder: Path) -> FolderLock:
    """One process at a time."""
    try:
        make_folder(folder)
    except OSError as error:
        raise UserError(f"cannot make the folder {folder}: {error.strerror}; choose another --out") from error
    return FolderLock(folder)


def check_folder(plan: ComparisonPlan, folder: Path) -> None:
    """A folder is new, or holds this very comparison; seeds may be added to it."""
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file; choose another --out")
    if not (folder / NOTE).is_file():
        # A comparison that was killed before it wrote anything may leave these two.
        if folder.exists() and {file.name for file in folder.iterdir()} - {".lock", f"{NOTE}.part"}:
            raise UserError(f"{folder} is not empty, and holds no comparison; choose another --out")
    elif other := plan_difference(load_plan(folder)[0], plan):
        advice = f"choose another --out, or go on with that one: fedtailor compare --resume {folder}"
        raise UserError(f"{folder} holds another comparison: {other}; {advice}")
