"""What a comparison found, as one object: table.json."""

import platform
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
import torch

from ..base.version import __version__
from ..evaluation.metrics import METRICS
from .comparison_plan import ComparisonPlan, Point, Shown
from .comparison_spec import ComparedRow, short_key, short_keys, trains
from .many import Summary
from .result_file import PARTS
from .statistics import differences
from .tuning import Tuned

Found = dict[str, list[tuple[Summary, Path | None]]]  # by title: a row's runs, and their folders


def summarise(
    plan: ComparisonPlan,
    found: Sequence[Found],  # at each point
    shown: Shown,
    folder: Path | None,
    tuned: Sequence[Tuned] = (),  # row by row, point by point
) -> Summary:
    best = iter(tuned)
    points = [
        summarise_point(point, here, shown, {row.title: next(best) for row in point.spec.rows if tuned})
        for point, here in zip(plan.points, found, strict=True)
    ]
    versions = {run["version"]: None for here in found for runs in here.values() for run, _ in runs}
    about = {"fedtailor": ", ".join(versions) or __version__, "torch": torch.__version__, "numpy": np.__version__}
    rest: Summary = {
        "seeds": list(plan.seeds),
        "number": shown.number,
        "sort": shown.sort,
        "same": same_everywhere(plan),
        "notes": said_by_all([run.get("notes", []) for here in found for runs in here.values() for run, _ in runs]),
        "command": plan.command,
        "date": datetime.now(UTC).date().isoformat(),
        "versions": {**about, "Python": platform.python_version()},
        "folder": None if folder is None else str(folder),
    }
    if not plan.axes:
        return {**points[0], **rest}
    axes = {short_key(key): list(values) for key, values in plan.axes.items()}
    at = [short_keys(point.at) for point in plan.points]
    show = shown.show or shown.sort or "overall"
    return {"axes": axes, "show": show, "points": [{"at": a, **p} for a, p in zip(at, points, strict=True)], **rest}


def said_by_all(notes: Sequence[Sequence[str]]) -> list[str]:
    """What every run says: of the data and CLIP that they share, not of one method."""
    first, *others = notes or [[]]
    return [note for note in first if all(note in it for it in others)]


def same_everywhere(plan: ComparisonPlan) -> dict[str, Any]:
    """What all rows share at all points. A setting may follow from another: a dataset has its own imbalance."""
    first, *others = (point.spec.same for point in plan.points)
    return {key: value for key, value in first.items() if all(it.get(key) == value for it in others)}


def summarise_point(point: Point, found: Found, shown: Shown, tuned: Mapping[str, Tuned]) -> Summary:
    number, rows = shown.number, point.spec.rows
    made: Summary = {"rows": [table_row(row, [run for run, _ in found[row.title]], number) for row in rows]}
    against = shown.against or reference(rows)
    common = {row.title: row.common for row in rows}
    scored = {
        row.title: [(run["seed"], {part: scores(run, part, number) for part in PARTS}, place) for run, place in its]
        for row in rows
        if (its := found[row.title]) and agree(common[row.title], common[against])  # on one federation
    }
    made["differences"] = differences(scored, against, bootstrap=number == "last") if len(scored) > 1 else None
    if tuned:
        made["tuning"] = {title: its.row() for title, its in tuned.items() if its.chosen}
    return made


def reference(rows: Sequence[ComparedRow]) -> str:
    """The first row that trains; if there is only one, the first row of all."""
    training = [row.title for row in rows if trains(row.method)]
    return training[0] if len(training) > 1 else rows[0].title


def agree(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    return all(a[key] == b[key] for key in a.keys() & b.keys())


def scores(run: Summary, part: str, number: str) -> dict[str, float | None]:
    """A method that does not train has only one number."""
    found = (run[part] if number == "last" or not run["rounds"] else run[number][part]) or {}
    return {name: found.get(name) for name in METRICS}


def table_row(row: ComparedRow, runs: Sequence[Summary], number: str) -> dict[str, Any]:
    return {
        "method": row.method,
        "title": row.title,
        "tuner": row.run.tuner.name,
        "labels": runs[0]["labels"],
        "settings": row.own,
        "rounds": row.run.rounds,
        "seeds": [run["seed"] for run in runs],
        **{
            part: {name: spread([scores(run, part, number)[name] for run in runs]) for name in METRICS}
            for part in PARTS
        },
        **{key: spread([run[key] for run in runs]) for key in ("worst_client", "bytes_up", "bytes_down", "seconds")},
    }


def spread(values: Sequence[float | None]) -> dict[str, float | None]:
    """Mean and sample standard deviation over the seeds that have the number."""
    known = [value for value in values if value is not None]
    mean, std = fmean(known) if known else None, stdev(known) if len(known) > 1 else None
    return {"mean": mean and round(mean, 4), "std": std and round(std, 4)}
