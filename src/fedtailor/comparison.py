"""Several methods on one federation, with the same cohorts and first parameters, over the same seeds.

A comparison's folder holds compare.json (what is compared, resolved), a run folder for each row and seed, and at the
end table.md and table.json. Whatever moment it is killed at, the same command goes on: finished runs are read, the one
that was stopped is resumed, the rest are begun.
"""

from __future__ import annotations

import json
import multiprocessing
import platform
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from os import PathLike
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
import torch

from . import __version__, api
from .catalogue import SHORTER
from .clip.load import load
from .config import SHORT, Run, flat, make_run, parse, parse_value, read_toml
from .errors import UserError, unknown
from .methods import METHODS
from .metrics import NAMES
from .report.comparison import markdown
from .setup import assemble, deal
from .store import Store, write

REFERENCE = "zeroshot"  # always the first row: what CLIP knows before anyone trains
NUMBERS = ("last", "last10", "best")
HELD = {"clients", "fraction", "threads", "data", "backbone"}  # what all rows must agree in
HELD_TRAINING = {"rounds", "every"}  # and those that train in these too
NOTE = "compare.json"

Spec = str | tuple[str, Mapping[str, Any]]  # "promptfl:lr=0.1", or ("promptfl", {"lr": 0.1})
Seeds = int | str | Sequence[int]


class RunsWatcher(api.Watcher):
    """Told how each run goes on, and which it is."""

    def running(self, title: str, seed: int, done: int, total: int) -> None:
        """So many runs are over, of so many; this one is next."""


SILENT = RunsWatcher()


@dataclass(frozen=True)
class Comparison:
    """`summary` is what `fedtailor compare --json` prints; `runs` are the summaries of each row's runs, by title."""

    summary: dict[str, Any]
    runs: dict[str, list[dict[str, Any]]]
    folder: Path | None = None


def compare(
    methods: Sequence[Spec],
    settings: Mapping[str, Any] | None = None,
    /,
    *,
    seeds: Seeds | None = None,
    number: str = "last",
    out: str | PathLike[str] | None = None,
    watcher: RunsWatcher = SILENT,
    sort: str | None = None,
    jobs: int = 1,
    **more: Any,
) -> Comparison:
    """Compare methods. Settings are for all of them; a method's own stand with it. `seeds=3` are seeds 0, 1 and 2.

    `sort="overall"` puts the best row first; with `jobs=2` two runs go on at a time, each in a process of its own.

    compare(["promptfl", "promptprox:method.mu=0.1", ("fedavg", {"tuner": "lora"})], {"data.alpha": 0.5}, seeds=3)
    """
    plan = make_plan(methods, {**(settings or {}), **more}, seeds)
    return carry_out(plan, None if out is None else Path(out), number, watcher, sort, jobs)


# --- what is compared -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    method: str
    own: dict[str, Any]  # its own settings, by their full keys
    run: Run  # resolved; each of its runs has another seed

    @property
    def title(self) -> str:
        return title(self.method, self.own)

    @property
    def held(self) -> dict[str, Any]:
        """What the other rows must have too."""
        include = HELD | HELD_TRAINING if trains(self.method) else HELD
        return flat(self.run.model_dump(include=include, exclude_none=True))


@dataclass(frozen=True)
class Plan:
    rows: tuple[Row, ...]
    settings: dict[str, Any]  # for all rows, as given
    seeds: tuple[int, ...]

    def runs(self) -> Iterator[tuple[Row, Run, Path]]:
        """Every run, and its place in the comparison's folder. Seed by seed: who stops early has seen all rows."""
        for seed in self.seeds:
            for row, folder in zip(self.rows, self.folders, strict=True):
                yield row, row.run.model_copy(update={"seed": seed}), Path(folder) / f"seed-{seed}"

    @property
    def folders(self) -> list[str]:
        """Each row's, by its title, numbered where another has that name."""
        names: list[str] = []
        for i, row in enumerate(self.rows):
            name = re.sub(r"[^\w.+-]+", "-", row.title)[:80].strip("-.")
            names.append(f"{name}--{i}" if name in names else name)
        return names

    @property
    def command(self) -> str:
        rows = [":".join([row.method, *filter(None, [",".join(pairs(row.own))])]) for row in self.rows]
        n, listed = len(self.seeds), ",".join(map(str, self.seeds))
        seeds = f"--seeds={n if self.seeds == tuple(range(n)) else listed}" if n > 1 else f"seed={listed}"
        return shlex.join(["fedtailor", "compare", *rows, *pairs(self.settings), seeds])

    def note(self) -> dict[str, Any]:
        rows = [
            {
                "method": row.method,
                "settings": row.own,
                "folder": folder,
                "run": row.run.model_dump(exclude_none=True, exclude={"seed"}),
            }
            for row, folder in zip(self.rows, self.folders, strict=True)
        ]
        note = {"version": __version__, "seeds": self.seeds, "settings": self.settings, "rows": rows}
        return dict(json.loads(json.dumps(note)))  # as it comes back from the file


def title(method: str, own: Mapping[str, Any]) -> str:
    return " ".join([method, *pairs(own)])


def pairs(settings: Mapping[str, Any]) -> list[str]:
    """`key=value` as on the command line, by the short keys."""
    texts = {key: placeless(value) for key, value in settings.items()}
    return [f"{short_key(key)}={v if isinstance(v, str) else json.dumps(v)}" for key, v in texts.items()]


def short_key(key: str) -> str:
    return SHORTER.get(key, key).replace("data.partition.", "data.")


def placeless(value: Any) -> Any:
    """As it may be shown to anyone: of a path only the last name."""
    form, colon, path = value.rpartition(":") if isinstance(value, str) else ("", "", "")
    return f"{form}{colon}{Path(path).name}" if Path(path).is_absolute() else value


def trains(method: str) -> bool:
    return method not in METHODS or METHODS[method].method.trains


def make_plan(methods: Sequence[Spec], settings: Mapping[str, Any], seeds: Seeds | None = None) -> Plan:
    """Every row resolved, and all that must be equal found equal."""
    if not methods:
        raise UserError("no method is named; name those to compare: fedtailor compare promptfl fedclip rounds=10")
    shared = full_keys(settings)
    chosen = choose_seeds(shared, seeds)
    bare: tuple[str, dict[str, Any]] = (REFERENCE, {})
    specs = [bare, *(spec for spec in map(read_spec, methods) if spec != bare)]
    training = [make_row(name, own, {**shared, **own}) for name, own in specs if trains(name)]
    check_equal(training)
    # What does not train has no use for the others' tuner, rate or preset, but stands on the same federation.
    held = {key: value for row in training[:1] for key, value in row.held.items() if key not in HELD_TRAINING}
    others = [make_row(name, own, {**(held or shared), **own}) for name, own in specs if not trains(name)]
    rows = [*others, *training]
    check_equal(rows)
    for i, row in enumerate(rows):
        if twin := next((other for other in rows[:i] if other.run == row.run or other.title == row.title), None):
            raise UserError(f"{row.title!r} and {twin.title!r} are the same; leave one of them out")
    return Plan(tuple(rows), shared, chosen)


def full_keys(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {SHORT.get(key, key): value for key, value in settings.items()}


def choose_seeds(shared: dict[str, Any], seeds: Seeds | None) -> tuple[int, ...]:
    """Takes `seeds` and `seed` out of the settings for all rows."""
    given = [value for value in (seeds, shared.pop("seeds", None)) if value is not None]
    seed = shared.pop("seed", None)
    if len(given) + (seed is not None) > 1:
        raise UserError("the seeds are given twice; give --seeds 3 (for 0, 1, 2), --seeds 5,7 or, for one, seed=5")
    return read_seeds([seed] if seed is not None else given[0] if given else 1)


def read_seeds(given: Seeds) -> tuple[int, ...]:
    """3 or "3" are seeds 0, 1, 2; "5,7" and [5, 7] are those."""
    what = parse_value(f"[{given}]" if "," in given else given) if isinstance(given, str) else given
    found = list(range(what)) if type(what) is int else list(what) if isinstance(what, Sequence) else []
    if not found or any(type(seed) is not int or seed < 0 for seed in found) or len(set(found)) < len(found):
        raise UserError(f"seeds={given}: give how many (3 for 0, 1, 2) or which (5,7), none of them twice")
    return tuple(found)


def read_spec(spec: Spec) -> tuple[str, dict[str, Any]]:
    """A method and its own settings. A comma parts two of them only where a key follows, so lists stay whole."""
    if not isinstance(spec, str):
        name, own = spec[0], full_keys(spec[1])
    else:
        name, colon, text = spec.partition(":")
        try:
            own = parse(re.split(r",(?=[\w.]+=)", text)) if colon else {}
        except UserError as error:
            raise UserError(f"{spec}: {error}") from error
    if wrong := {"seed", "seeds", "method.name"} & set(own):
        raise UserError(f"{name}: {wrong.pop()} cannot be set for one row alone")
    return name, own


def every_method() -> list[str]:
    """All methods; of those that are the same under two names, the one that a paper gave it."""
    return list({(e.method, e.tuner, str(e.settings)): name for name, e in METHODS.items()}.values())


def split_words(words: Sequence[str]) -> tuple[list[str], dict[str, Any]]:
    """A command line's methods, which are plain or have a colon before any `=`, and its settings for all of them."""
    methods = [word for word in words if "=" not in word or ":" in word.partition("=")[0]]
    return methods, parse(word for word in words if word not in methods)


def make_row(name: str, own: dict[str, Any], settings: Mapping[str, Any]) -> Row:
    try:
        return Row(name, own, make_run(name, settings))
    except UserError as error:
        if name not in METHODS:
            raise
        hint = "; a key for some rows only stands with them, METHOD:key=value" if "unknown key" in str(error) else ""
        raise UserError(f"{title(name, own)}: {error}{hint}") from error


def check_equal(rows: Sequence[Row]) -> None:
    """Methods are compared on the same federation, for as long."""
    for name in dict.fromkeys(key for row in rows for key in row.held):
        values = {row.title: row.held.get(name) for row in rows if name not in HELD_TRAINING or trains(row.method)}
        if any(value != next(iter(values.values())) for value in values.values()):
            told, key = ", ".join(f"{value} in {row}" for row, value in values.items()), short_key(name)
            raise UserError(f"the rows differ in {key}: {told}; it must be equal, so give {key}=… once, for all")


# --- the runs -------------------------------------------------------------------------------------------------------


def carry_out(
    plan: Plan,
    folder: Path | None,
    number: str = "last",
    watcher: RunsWatcher = SILENT,
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
        check_folder(plan, folder)
    left = [
        (row, run)
        for row, run, place in plan.runs()
        if folder is None or not (folder / place / "result.json").is_file()
    ]
    if left:
        rehearse(left, watcher)
    if folder is None:
        return side_by_side(plan, None, number, watcher, sort, jobs)
    with taken(folder):
        write(folder / NOTE, as_json({**plan.note(), "number": number, "sort": sort}))
        made = side_by_side(plan, folder, number, watcher, sort, jobs)
        write(folder / "table.json", as_json(made.summary))
        write(folder / "table.md", markdown(made.summary).encode())
    return made


def rehearse(runs: Sequence[tuple[Row, Run]], watcher: RunsWatcher) -> None:
    """What can go wrong before a first round goes wrong here, before the first run.

    Images are encoded here too, once for all rows, so that no row's seconds bear it.
    """
    with api.threads(runs[0][1].threads):
        checkpoint = load(runs[0][1].backbone.name)
        seed = None
        for done, (row, run) in enumerate(runs):
            watcher.working("preparing", done, len(runs))
            if run.seed != seed:
                seed, (federation, groups) = run.seed, deal(run)
            try:
                assemble(run, federation, groups, checkpoint, watcher.working)
            except UserError as error:
                raise UserError(f"{row.title}: {error}") from error
        watcher.working("preparing", len(runs), len(runs))


def side_by_side(
    plan: Plan, folder: Path | None, number: str, watcher: RunsWatcher, sort: str | None, jobs: int
) -> Comparison:
    runs = [(row, run, None if folder is None else folder / place) for row, run, place in plan.runs()]
    found: dict[str, list[dict[str, Any]]] = {row.title: [] for row in plan.rows}
    for (row, _, _), summary in zip(runs, summaries(runs, watcher, jobs), strict=True):
        found[row.title].append(summary)
    same = {short_key(key): placeless(value) for key, value in plan.rows[-1].held.items() if value != ""}
    summary = {
        "rows": [table_row(row, found[row.title], number) for row in plan.rows],
        "seeds": list(plan.seeds),
        "number": number,
        "sort": sort,
        "same": same,
        "command": plan.command,
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
    runs: Sequence[tuple[Row, Run, Path | None]], watcher: RunsWatcher, jobs: int
) -> Iterator[dict[str, Any]]:
    """Of every run, in this order; several are made at a time if asked."""
    if jobs == 1:
        for done, (row, run, place) in enumerate(runs):
            watcher.running(row.title, run.seed, done, len(runs))
            yield summary_of(run, place, watcher)
        return
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
        futures = {pool.submit(summary_of, run, place): (row, run) for row, run, place in runs}
        try:
            for done, future in enumerate(as_completed(futures)):
                future.result()  # what goes wrong in one ends the comparison now, not when its turn comes
                row, run = futures[future]
                watcher.running(row.title, run.seed, done, len(runs))
        except BrokenProcessPool as error:
            told = "a run's process was ended from outside; the same command goes on with it"
            raise UserError(f"{told}, perhaps with fewer than {jobs} --jobs") from error
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
        yield from (future.result() for future in futures)


def summary_of(run: Run, folder: Path | None, watcher: api.Watcher = api.SILENT) -> dict[str, Any]:
    """Read where it is finished, resumed where it was stopped, else run."""
    if folder is None or not (folder / "run.toml").is_file():
        return api.run(run, out=folder, watcher=watcher).summary
    if read_toml(folder / "run.toml") != run:
        raise UserError(f"{folder} holds another run than the comparison's; was it edited? Remove it to run it anew")
    result = folder / "result.json"
    return dict(json.loads(result.read_text())) if result.is_file() else api.resume(folder, watcher=watcher).summary


# --- the numbers ----------------------------------------------------------------------------------------------------


def table_row(row: Row, summaries: Sequence[dict[str, Any]], number: str) -> dict[str, Any]:
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


@contextmanager
def taken(folder: Path) -> Iterator[None]:
    """One process at a time."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot make the folder {folder}: {error.strerror}; choose another --out") from error
    store = Store(folder)
    store.take()
    try:
        yield
    finally:
        store.close()


def read_note(folder: Path) -> dict[str, Any]:
    path = folder / NOTE
    if not path.is_file():
        raise UserError(f"{folder} is not a comparison's folder: it has no {NOTE}")
    try:
        note = dict(json.loads(path.read_text()))
        lacking = {"version", "settings", "seeds", "rows", "number"} - set(note)
    except (ValueError, TypeError) as error:
        raise UserError(f"{path} is damaged ({error})") from error
    if lacking:
        raise UserError(f"{path} is damaged: it lacks {', '.join(sorted(lacking))}")
    if note["version"] != __version__:
        told = f"{folder} was written by fedtailor {note['version']}, this is {__version__}"
        raise UserError(f"{told}; compare anew, in another folder")
    return note


def read_plan(folder: Path) -> tuple[Plan, str, str | None]:
    """What a folder's comparison is of, the number it is by, and the column it is sorted by."""
    note = read_note(folder)
    rows = tuple(Row(row["method"], row["settings"], make_run(settings=flat(row["run"]))) for row in note["rows"])
    return Plan(rows, note["settings"], tuple(note["seeds"])), note["number"], note.get("sort")


def check_folder(plan: Plan, folder: Path) -> None:
    """A folder is new, or holds this very comparison; seeds may be added to it."""
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file; choose another --out")
    if not (folder / NOTE).is_file():
        # What a comparison leaves that was killed before it could write anything is no reason to refuse.
        if folder.exists() and {file.name for file in folder.iterdir()} - {".lock", f"{NOTE}.part"}:
            raise UserError(f"{folder} is not empty, and holds no comparison; choose another --out")
        return
    there, here = read_note(folder), plan.note()
    if told := difference(there, here):
        raise UserError(
            f"{folder} holds another comparison: {told}; choose another --out, or go on with that one: "
            f"fedtailor compare --resume {folder}"
        )


def difference(there: dict[str, Any], here: dict[str, Any]) -> str:
    """The first thing in which a folder's comparison is another than this one, in words."""
    old, new = ([title(row["method"], row["settings"]) for row in note["rows"]] for note in (there, here))
    if old != new:
        return f"its rows are {', '.join(old)}, not {', '.join(new)}"
    for name, *rows in zip(new, there["rows"], here["rows"], strict=True):
        before, now = (flat(row["run"]) for row in rows)
        for key in {**before, **now}:
            if before.get(key) != now.get(key):
                return f"{short_key(key)} of {name} is {before.get(key)}, not {now.get(key)}"
    lost = [str(seed) for seed in there["seeds"] if seed not in here["seeds"]]
    return f"it has seed {' and '.join(lost)} too" if lost else ""
