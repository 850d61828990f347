"""What a figure is drawn from: records of runs, and which of them are seeds of one setting."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...base.errors import UserError
from ...base.names import told_apart
from ...settings.keys import SHORTER

Row = dict[str, Any]
Table = list[Row]  # what is drawn, all of it; the CSV
PARTS = ("global", "personal")
GROUPS = ("head", "mid", "tail")
METRICS = ("overall", *GROUPS)
ZERO_SHOT = "zero-shot CLIP"
NO_LINE = {"seed", "threads", "engine", "record", "every", "memory.budget_gb"}  # settings that make no other line
FEDERATION = ("data.", "backbone.", "clients", "fraction")  # beginnings of keys that lines of all methods have


class Texts(NamedTuple):
    """Text features of all classes with prompts of one kind only, (N, C, D), of N owners."""

    owners: list[str]
    general: NDArray[np.float32]
    aware: NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class RunRecord:
    folder: Path
    settings: Mapping[str, Any]  # by dotted key
    rounds: Sequence[Mapping[str, Any]]  # lines of rounds.jsonl
    data: Mapping[str, Any]  # data.json; empty where a run was ended before it was written, and has no rounds
    texts: Callable[[], Texts]  # from the checkpoint; loads CLIP

    @property
    def method(self) -> str:
        return str(self.settings["method.name"])

    @property
    def tested(self) -> list[Mapping[str, Any]]:
        return [row for row in self.rounds if row["global"] is not None]

    def recorded(self, name: str) -> bool:
        return any(name in row.get("diagnostics", ()) for row in self.rounds)

    @property
    def clients(self) -> list[str]:
        """By name, as all records have them, in the order of counts."""
        return self.data.get("clients") or [str(k) for k in range(int(self.settings["clients"]))]

    def zero_shot(self, part: str, name: str) -> Any:
        """None where nobody noted it."""
        return dig(self.data, "zero_shot", part, name)


@dataclass(frozen=True)
class Series:
    """Runs that differ in their seed alone: one line, their mean."""

    label: str
    runs: tuple[RunRecord, ...]


def series_of(runs: Iterable[RunRecord]) -> list[Series]:
    """In the order given. A label is the method's name and the settings in which it differs from other lines."""
    groups: dict[str, list[RunRecord]] = {}
    for run in runs:
        groups.setdefault(repr(sorted(line_settings(run).items())), []).append(run)
    for same in groups.values():
        by_seed: dict[Any, RunRecord] = {}
        for run in same:
            if (other := by_seed.setdefault(run.settings["seed"], run)) is not run:
                raise UserError(f"{other.folder} and {run.folder} are the same run, seed and all; give one of them")
    firsts = [same[0] for same in groups.values()]
    federation = {key for key in differing(firsts) if key.startswith(FEDERATION)}
    return [
        Series(label(run, firsts, federation), tuple(same)) for run, same in zip(firsts, groups.values(), strict=True)
    ]


def line_settings(run: RunRecord) -> dict[str, Any]:
    return {key: value for key, value in run.settings.items() if key not in NO_LINE}


def differing(runs: Sequence[RunRecord]) -> list[str]:
    """Settings that are not the same in all of these runs."""
    keys = dict.fromkeys(key for run in runs for key in line_settings(run))
    return [key for key in keys if any(run.settings.get(key) != runs[0].settings.get(key) for run in runs)]


def label(run: RunRecord, others: Sequence[RunRecord], federation: set[str]) -> str:
    own = differing([other for other in others if other.method == run.method])
    keys = dict.fromkeys([*own, *sorted(federation)])
    return " ".join([run.method, *(f"{short(key)}={run.settings[key]}" for key in keys if key in run.settings)])


def short(key: str) -> str:
    """As on the command line, but for options of a method: those by their name alone."""
    if key.startswith("method."):
        return key.rsplit(".", 1)[1]
    return SHORTER.get(key, key).replace("data.partition.", "data.")


def spread(values: Iterable[float | None]) -> Row:
    """Mean and sample standard deviation over seeds; nothing if no seed has the number."""
    known = [float(value) for value in values if value is not None]
    if not known:
        return {}
    return {"value": fmean(known), "std": stdev(known) if len(known) > 1 else None, "seeds": len(known)}


def dig(value: Any, *path: str) -> Any:
    """What stands at the end of a path of keys; None where it ends early."""
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


class Classes(NamedTuple):
    order: list[int]  # the most frequent first, if that is known
    keys: Sequence[str]  # their names in records
    names: list[str]  # as people write them
    groups: dict[int, str]
    axis: str  # what the order is, in words


def classes_of(run: RunRecord) -> Classes:
    """In data.json's order where a server does not know its clients' counts."""
    keys, counts = told_apart(run.data.get("classes", ())), run.data.get("counts")
    groups = {keys.index(key): name for name, members in run.data.get("groups", {}).items() for key in members}
    names = [key.replace("_", " ") for key in keys]
    if counts is None:
        return Classes(list(range(len(keys))), keys, names, groups, "class, by index (counts are not known)")
    order = np.argsort(-np.array(counts).sum(axis=0), kind="stable").tolist()
    return Classes(order, keys, names, groups, "class, most frequent first")
