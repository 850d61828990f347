"""What a comparison compares: rows on one federation, with the same cohorts, rounds and seeds; and its note of them."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..base.errors import UserError
from ..base.version import __version__
from ..methods import METHODS
from ..methods.recipe import flat
from ..settings.keys import SHORT, SHORTER, parse, parse_value
from ..settings.run import Run, make_run

REFERENCE = "zeroshot"  # always the first row: what CLIP knows before anyone trains
HELD = {"clients", "fraction", "threads", "data", "backbone"}  # what all rows must agree in
HELD_TRAINING = {"rounds", "every"}  # and those that train in these too
NOTE = "compare.json"

RowSpec = str | tuple[str, Mapping[str, Any]]  # "promptfl:lr=0.1", or ("promptfl", {"lr": 0.1})
Seeds = int | str | Sequence[int]


@dataclass(frozen=True)
class ComparedRow:
    method: str
    own: dict[str, Any]  # its own settings, by their full keys
    run: Run  # resolved; each of its runs has another seed

    @property
    def title(self) -> str:
        return title(self.method, self.own)

    @property
    def resolved(self) -> dict[str, Any]:
        """All its settings but the seed."""
        return {key: value for key, value in self.run.document().items() if key != "seed"}

    @property
    def held(self) -> dict[str, Any]:
        """What the other rows must have too."""
        include = HELD | HELD_TRAINING if trains(self.method) else HELD
        return flat({key: value for key, value in self.run.document().items() if key in include})


@dataclass(frozen=True)
class ComparisonSpec:
    rows: tuple[ComparedRow, ...]
    settings: dict[str, Any]  # for all rows, as given
    seeds: tuple[int, ...]

    def runs(self) -> Iterator[tuple[ComparedRow, Run, Path]]:
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
                "run": row.resolved,
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


def make_spec(methods: Sequence[RowSpec], settings: Mapping[str, Any], seeds: Seeds | None = None) -> ComparisonSpec:
    """Every row resolved, and all that must be equal found equal."""
    if not methods:
        raise UserError("no method is named; name those to compare: fedtailor compare promptfl fedclip rounds=10")
    shared = full_keys(settings)
    chosen = choose_seeds(shared, seeds)
    bare: tuple[str, dict[str, Any]] = (REFERENCE, {})
    specs = [bare, *(spec for spec in map(parse_row, methods) if spec != bare)]
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
    return ComparisonSpec(tuple(rows), shared, chosen)


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


def parse_row(spec: RowSpec) -> tuple[str, dict[str, Any]]:
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


def make_row(name: str, own: dict[str, Any], settings: Mapping[str, Any]) -> ComparedRow:
    try:
        return ComparedRow(name, own, make_run(name, settings))
    except UserError as error:
        if name not in METHODS:
            raise
        hint = "; a key for some rows only stands with them, METHOD:key=value" if "unknown key" in str(error) else ""
        raise UserError(f"{title(name, own)}: {error}{hint}") from error


def check_equal(rows: Sequence[ComparedRow]) -> None:
    """Methods are compared on the same federation, for as long."""
    for name in dict.fromkeys(key for row in rows for key in row.held):
        values = {row.title: row.held.get(name) for row in rows if name not in HELD_TRAINING or trains(row.method)}
        if any(value != next(iter(values.values())) for value in values.values()):
            told, key = ", ".join(f"{value} in {row}" for row, value in values.items()), short_key(name)
            raise UserError(f"the rows differ in {key}: {told}; it must be equal, so give {key}=… once, for all")


# --- its note -----------------------------------------------------------------------------------------------------


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


def load_spec(folder: Path) -> tuple[ComparisonSpec, str, str | None]:
    """What a folder's comparison is of, the number it is by, and the column it is sorted by."""
    note = read_note(folder)
    rows = tuple(
        ComparedRow(row["method"], row["settings"], make_run(settings=flat(row["run"]))) for row in note["rows"]
    )
    return ComparisonSpec(rows, note["settings"], tuple(note["seeds"])), note["number"], note.get("sort")


def difference(there: ComparisonSpec, here: ComparisonSpec) -> str:
    """The first thing in which a folder's comparison is another than this one, in words."""
    old, new = ([row.title for row in it.rows] for it in (there, here))
    if old != new:
        return f"its rows are {', '.join(old)}, not {', '.join(new)}"
    for name, *rows in zip(new, there.rows, here.rows, strict=True):
        before, now = (flat(row.resolved) for row in rows)
        for key in {**before, **now}:
            if before.get(key) != now.get(key):
                return f"{short_key(key)} of {name} is {before.get(key)}, not {now.get(key)}"
    lost = [str(seed) for seed in there.seeds if seed not in here.seeds]
    return f"it has seed {' and '.join(lost)} too" if lost else ""
