"""What a comparison compares: rows on one federation, with the same cohorts, rounds and seeds; read and written."""

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..base.errors import UserError
from ..base.keys import flat
from ..base.version import __version__
from ..core import Method
from ..methods import METHODS
from ..methods.recipe import RELEASED
from ..settings.extensions import discover, name_of
from ..settings.keys import SHORTER, full_keys, parse, parse_value
from ..settings.run import Run, make_run

REFERENCE = "zeroshot"  # always the first row: CLIP before any training
COMMON = {"clients", "fraction", "threads", "data", "backbone"}  # settings that are equal in all rows
COMMON_TRAINING = {"rounds", "every"}  # and in all rows that train
NOTE = "compare.json"

# "promptfl:lr=0.1", or ("promptfl", {"lr": 0.1}); a method's class may stand for its name
RowSpec = str | type[Method] | tuple[str | type[Method], Mapping[str, Any]]
Seeds = int | str | Sequence[int]


@dataclass(frozen=True)
class ComparedRow:
    method: str
    own: dict[str, Any]  # its own settings, by their full keys
    run: Run  # resolved; the seed is replaced in each of its runs

    @property
    def title(self) -> str:
        return label(self.method, self.own)

    @property
    def resolved(self) -> dict[str, Any]:
        """All its settings but the seed."""
        return {key: value for key, value in self.run.document().items() if key != "seed"}

    @property
    def common(self) -> dict[str, Any]:
        """The settings that the other rows must have too."""
        include = COMMON | COMMON_TRAINING if trains(self.method) else COMMON
        return flat({key: value for key, value in self.run.document().items() if key in include})


@dataclass(frozen=True)
class ComparisonSpec:
    rows: tuple[ComparedRow, ...]
    settings: dict[str, Any]  # for all rows, as given
    seeds: tuple[int, ...]

    def runs(self) -> Iterator[tuple[ComparedRow, Run, Path]]:
        """Every run, and its place in the comparison's folder. Seed by seed, so that all rows have a result early."""
        for seed in self.seeds:
            for row, folder in zip(self.rows, self.folders, strict=True):
                yield row, row.run.model_copy(update={"seed": seed}), Path(folder) / f"seed-{seed}"

    @property
    def folders(self) -> list[str]:
        """Each row's, named after its title, with a number if an earlier row has that name."""
        return folder_names([row.title for row in self.rows])

    @property
    def same(self) -> dict[str, Any]:
        """What is equal in all rows, by short keys."""
        same = {key: value for key, value in self.rows[-1].common.items() if value != ""}
        given = {key: value for key, value in self.settings.items() if key in same and isinstance(value, str)}  # a path
        return short_keys({**same, **given})

    @property
    def command(self) -> str:
        rows = [":".join([row.method, *filter(None, [",".join(pairs(row.own))])]) for row in self.rows]
        n, listed = len(self.seeds), ",".join(map(str, self.seeds))
        seeds = f"--seeds={n if self.seeds == tuple(range(n)) else listed}" if n > 1 else f"seed={listed}"
        return shlex.join(["fedtailor", "compare", *rows, *pairs(self.settings), seeds])

    def note(self) -> dict[str, Any]:
        """For compare.json."""
        rows = [
            {"method": row.method, "settings": row.own, "folder": folder, "run": row.resolved}
            for row, folder in zip(self.rows, self.folders, strict=True)
        ]
        return {"version": __version__, "seeds": self.seeds, "settings": self.settings, "rows": rows}


def pairs(settings: Mapping[str, Any]) -> list[str]:
    """`key=value` as on the command line, with short keys."""
    return [f"{short_key(key)}={v if isinstance(v, str) else json.dumps(v)}" for key, v in settings.items()]


def label(name: str, settings: Mapping[str, Any]) -> str:
    """To call something by: of a path, with its `folder:` or `csv:`, only the last name."""
    return " ".join(filter(None, [name, *pairs({key: last_name(value) for key, value in settings.items()})]))


def folder_names(titles: Sequence[str]) -> list[str]:
    names: list[str] = []
    for i, title in enumerate(titles):
        name = re.sub(r"[^\w.+-]+", "-", title)[:80].strip("-.")
        names.append(f"{name}--{i}" if name in names else name)
    return names


def short_keys(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {short_key(key): value for key, value in settings.items()}


def short_key(key: str) -> str:
    return SHORTER.get(key, key).replace("data.partition.", "data.")


def last_name(value: Any) -> Any:
    form, colon, path = value.rpartition(":") if isinstance(value, str) else ("", "", "")
    return f"{form}{colon}{Path(path).name}" if Path(path).is_absolute() else value


def trains(method: str) -> bool:
    return method not in METHODS or METHODS[method].method.trains


def make_spec(methods: Sequence[RowSpec], settings: Mapping[str, Any], seeds: Seeds | None = None) -> ComparisonSpec:
    """Every row resolved, and checked to be comparable."""
    if not methods:
        raise UserError("no method is named; name those to compare: fedtailor compare promptfl fedclip rounds=10")
    shared = full_keys(settings)
    chosen = choose_seeds(shared, seeds)
    reference: tuple[str, dict[str, Any]] = (REFERENCE, {})
    specs = [reference, *(spec for spec in map(parse_row, methods) if spec != reference)]
    training = [make_row(name, own, {**shared, **own}) for name, own in specs if trains(name)]
    check_equal(training)
    # A method that does not train has no use for the others' tuner, rate or preset, but needs their federation.
    common = {key: value for row in training[:1] for key, value in row.common.items() if key not in COMMON_TRAINING}
    others = [make_row(name, own, {**(common or shared), **own}) for name, own in specs if not trains(name)]
    rows = [*others, *training]
    check_equal(rows)
    for i, row in enumerate(rows):
        if twin := next((other for other in rows[:i] if other.run == row.run or other.title == row.title), None):
            raise UserError(f"{row.title!r} and {twin.title!r} are the same; leave one of them out")
    return ComparisonSpec(tuple(rows), shared, chosen)


def choose_seeds(shared: dict[str, Any], seeds: Seeds | None) -> tuple[int, ...]:
    """Takes `seeds` and `seed` out of the settings for all rows."""
    seed = shared.pop("seed", None)
    one = None if seed is None else [seed]
    given = [value for value in (seeds, shared.pop("seeds", None), one) if value is not None]
    if len(given) > 1:
        raise UserError("the seeds are given twice; give --seeds 3 (for 0, 1, 2), --seeds 5,7 or, for one, seed=5")
    return read_seeds(given[0] if given else 1)


def read_seeds(given: Seeds) -> tuple[int, ...]:
    """3 or "3" means seeds 0, 1, 2; "5,7" and [5, 7] mean those."""
    what = parse_value(f"[{given}]" if "," in given else given) if isinstance(given, str) else given
    found = list(range(what)) if type(what) is int else list(what) if isinstance(what, Sequence) else []
    if not found or any(type(seed) is not int or seed < 0 for seed in found) or len(set(found)) < len(found):
        raise UserError(f"seeds={given}: give how many (3 for 0, 1, 2) or which (5,7), none of them twice")
    return tuple(found)


def parse_row(spec: RowSpec) -> tuple[str, dict[str, Any]]:
    """A method and its own settings. A comma separates settings only if a key follows it: a list may have commas."""
    if isinstance(spec, type):
        name, own = name_of(spec), {}
    elif not isinstance(spec, str):
        name, own = name_of(spec[0]) if isinstance(spec[0], type) else spec[0], full_keys(spec[1])
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
    """All methods but for those as released; of two names for the same, the one that a paper gave it."""
    discover()
    published = {name: e for name, e in METHODS.items() if e.family != RELEASED}
    return list({(e.method, e.tuner, str(e.settings)): name for name, e in published.items()}.values())


def split_words(words: Sequence[str]) -> tuple[list[str], dict[str, Any]]:
    """A command line's methods, which have no `=`, or a colon before it, and its settings for all of them."""
    methods = [word for word in words if "=" not in word or ":" in word.partition("=")[0]]
    return methods, parse(word for word in words if word not in methods)


def make_row(name: str, own: dict[str, Any], settings: Mapping[str, Any]) -> ComparedRow:
    try:
        return ComparedRow(name, own, make_run(name, settings))
    except UserError as error:
        if name not in METHODS:
            raise
        hint = "; a key for some rows only stands with them, METHOD:key=value" if "unknown key" in str(error) else ""
        raise UserError(f"{label(name, own)}: {error}{hint}") from error


def check_equal(rows: Sequence[ComparedRow]) -> None:
    """Methods are compared on the same federation, over as many rounds."""
    for name in dict.fromkeys(key for row in rows for key in row.common):
        values = {row.title: row.common.get(name) for row in rows if name not in COMMON_TRAINING or trains(row.method)}
        if any(value != next(iter(values.values())) for value in values.values()):
            listed, key = ", ".join(f"{value} in {row}" for row, value in values.items()), short_key(name)
            raise UserError(f"the rows differ in {key}: {listed}; it must be equal, so give {key}=… once, for all")


def difference(there: ComparisonSpec, here: ComparisonSpec) -> str:
    """The first difference between a folder's comparison and this one, in words; seeds may be added."""
    old, new = ([row.title for row in spec.rows] for spec in (there, here))
    if old != new:
        return f"its rows are {', '.join(old)}, not {', '.join(new)}"
    for name, *rows in zip(new, there.rows, here.rows, strict=True):
        before, now = (flat(row.resolved) for row in rows)
        for key in {**before, **now}:
            if before.get(key) != now.get(key):
                return f"{short_key(key)} of {name} is {before.get(key)}, not {now.get(key)}"
    lost = [str(seed) for seed in there.seeds if seed not in here.seeds]
    return f"it has seed {' and '.join(lost)} too" if lost else ""
