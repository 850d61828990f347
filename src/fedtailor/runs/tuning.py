"""Settings chosen on validation data, for each run its own: `tune(runs, {"lr": [1e-3, 1e-2]})`.

Every value is tried in a run that keeps a part of the clients' training pictures out of training, and is tested on
those instead of the test set (data.validation). What is chosen then trains on all of them. With a folder, the runs that
try values are run folders in it, and go on like any other.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

from ..base.errors import Diverged, UserError, unknown
from ..evaluation.metrics import METRICS
from ..settings.keys import full_keys, with_changes
from ..settings.run import Run, keys_of, make_run
from . import execute
from .callback import Callback, ComparisonCallback
from .comparison_spec import COMMON, COMMON_TRAINING, ComparedRow, folder_names, short_key, short_keys
from .many import SILENT, PlacedRun, Summary, run_all, run_or_read

BALANCED, PERSONAL = "balanced", "personal"  # numbers to choose by, besides those in METRICS


@dataclass(frozen=True)
class Tuning:
    """What is tried, and how one of it is chosen."""

    grid: dict[str, list[Any]]  # by full keys
    by: str = BALANCED
    seeds: tuple[int, ...] = (0,)
    rounds: int | None = None  # None: as many as the run has
    validation: float = 0.2

    def __post_init__(self) -> None:
        object.__setattr__(self, "grid", {key: list(values) for key, values in full_keys(self.grid).items()})
        object.__setattr__(self, "seeds", tuple(self.seeds))
        for key, values in self.grid.items():
            if key.split(".")[0] in COMMON | COMMON_TRAINING | {"seed", "seeds"} or key == "method.name":
                raise UserError(
                    f"--tune {short_key(key)}: it decides what is compared, not how well a method does; see --over"
                )
            if len(values) < 2 or any(value in values[:i] for i, value in enumerate(values)):
                raise UserError(f"--tune {short_key(key)}={values}: give two values or more, none of them twice")
        if self.by not in (known := [BALANCED, PERSONAL, *METRICS, *(f"{PERSONAL}-{name}" for name in METRICS)]):
            raise unknown("tune-by", self.by, known)
        if not 0 < self.validation < 1:
            raise UserError(f"validation={self.validation}: a part of the training pictures, above 0 and below 1")
        if self.rounds is not None and self.rounds < 1:
            raise UserError(f"tune-rounds={self.rounds}: 1 or more")

    def of(self, run: Run, own: Mapping[str, Any] = {}) -> "Tuning":
        """What of it there is to choose for this run: not what it does not have, or has been given."""
        known = keys_of(run) if run.method.value.trains else set()
        return replace(self, grid={key: values for key, values in self.grid.items() if key in known - own.keys()})

    def trials(self, run: Run) -> Iterator[tuple[dict[str, Any], list[Run]]]:
        """Every combination of values, and the runs that try it: one for each seed."""
        rounds = min(self.rounds or run.rounds, run.rounds)
        same = {"rounds": rounds, "every": rounds, "record": [], "data.validation": self.validation}
        for values in product(*self.grid.values()) if self.grid else ():
            chosen = dict(zip(self.grid, values, strict=True))
            yield chosen, [changed(run, {**chosen, **same, "seed": seed}) for seed in self.seeds]


@dataclass(frozen=True)
class Tried:
    values: dict[str, Any]
    scores: list[float | None]  # one for each seed; None: training diverged

    @property
    def score(self) -> float | None:
        known = [score for score in self.scores if score is not None]
        return fmean(known) if len(known) == len(self.scores) else None


@dataclass(frozen=True)
class Tuned:
    run: Run  # with the best values, as it would be run without validation
    chosen: dict[str, Any]  # empty: there was nothing to choose
    by: str  # which number, in words
    scores: list[Tried]

    @property
    def ends(self) -> dict[str, str]:
        """Where the best value is the smallest or the largest that was tried: a better one may lie beyond."""
        found = {}
        for key, best in self.chosen.items():
            values = [tried.values[key] for tried in self.scores]
            if all(type(value) in (int, float) for value in values) and best in (min(values), max(values)):
                found[key] = "smallest" if best == min(values) else "largest"
        return found

    def row(self) -> dict[str, Any]:
        """For table.json."""
        tried = [{"values": short_keys(it.values), "score": it.score, "scores": it.scores} for it in self.scores]
        best = next(it["score"] for it in tried if it["values"] == short_keys(self.chosen))
        ends = short_keys(self.ends)
        return {"chosen": short_keys(self.chosen), "by": self.by, "score": best, "tried": tried, "ends": ends}


def tune(
    runs: Sequence[Run],
    grid: Mapping[str, Sequence[Any]],
    folder: Path | None = None,
    callback: ComparisonCallback = SILENT,
    jobs: int = 1,
    *,
    names: Sequence[str] | None = None,  # of the runs' folders
    **options: Any,  # of Tuning: by, seeds, rounds, validation
) -> list[Tuned]:
    """Each run at its own best values. One that does not train, or has none of these settings, comes back as it is."""
    tuning = Tuning({key: list(values) for key, values in grid.items()}, **options)
    if wrong := [key for key in tuning.grid if not any(key in tuning.of(run).grid for run in runs)]:
        raise unknown("key", wrong[0], {key for run in runs for key in keys_of(run)})
    names = names or folder_names([run.method.name for run in runs])
    return tune_each([(run, tuning.of(run)) for run in runs], folder, names, callback, jobs)


def tune_each(
    cases: Sequence[tuple[Run, Tuning]],
    folder: Path | None,
    names: Sequence[str],  # of the runs' folders
    callback: ComparisonCallback,
    jobs: int,
) -> list[Tuned]:
    placed = trial_runs(cases, folder, names)
    flat = [run for trials in placed for _, runs in trials for run in runs]
    results = iter(list(run_all(flat, callback, jobs, run_unless_it_diverges)))
    made = []
    for (run, tuning), trials in zip(cases, placed, strict=True):
        found = [(values, [next(results) for _ in runs]) for values, runs in trials]
        made.append(choose(run, tuning, found))
    return made


def trial_runs(
    cases: Sequence[tuple[Run, Tuning]], folder: Path | None, names: Sequence[str]
) -> list[list[tuple[dict[str, Any], list[PlacedRun]]]]:
    """For each case, every combination of values and its runs, with their places."""
    made = []
    for (run, tuning), name in zip(cases, names, strict=True):
        trials = list(tuning.trials(run))
        rows = [ComparedRow(run.method.name, values, run) for values, _ in trials]
        places = folder_names([row.title.removeprefix(f"{row.method} ") for row in rows])
        made.append([
            (values, [(row, it, folder and folder / name / place / f"seed-{it.seed}") for it in runs])
            for (values, runs), row, place in zip(trials, rows, places, strict=True)
        ])  # fmt: skip
    return made


def choose(run: Run, tuning: Tuning, found: Sequence[tuple[dict[str, Any], list[Summary]]]) -> Tuned:
    """The best of what was tried; of equal ones the first."""
    if not found:
        return Tuned(run, {}, "", [])
    ended = [summary for _, summaries in found for summary in summaries if summary]
    part, name = number_of(tuning.by, ended[0]) if ended else ("", "")
    tried = [Tried(values, [score_of(it, part, name) if it else None for it in its]) for values, its in found]
    best = max((it for it in tried if it.score is not None), key=lambda it: it.score or 0.0, default=None)
    if best is None:
        values = ", ".join(map(str, tuning.grid.values()))
        why = (
            f"no validation picture counts for {tuning.by}" if ended else "training diverged with each of these values"
        )
        raise UserError(f"{run.method.name}: {why} of {', '.join(tuning.grid)} ({values}); try others")
    number = f"{part} {name}{' accuracy' if name == BALANCED else ''}"
    return Tuned(changed(run, best.values), best.values, number, tried)


def number_of(by: str, summary: Summary) -> tuple[str, str]:
    """Whose number, and which. Without a global model it is the personal one; there, overall stands for balanced."""
    if by.startswith(PERSONAL):
        return PERSONAL, by.removeprefix(PERSONAL).removeprefix("-") or "overall"
    if summary["global"]["overall"] is None:
        return PERSONAL, "overall" if by == BALANCED else by
    return "global", by


def score_of(summary: Summary, part: str, name: str) -> float | None:
    found = summary[BALANCED] if name == BALANCED else {it: summary[it][name] for it in ("global", PERSONAL)}
    return None if found[part] is None else float(found[part])


def changed(run: Run, settings: Mapping[str, Any]) -> Run:
    return make_run(settings=with_changes(run.document(), settings))


def run_unless_it_diverges(run: Run, folder: Path | None, callback: Callback = execute.SILENT) -> Summary:
    """Its summary; an empty one says that this value is no good."""
    try:
        return run_or_read(run, folder, callback)
    except Diverged:
        return {}
