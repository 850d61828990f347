"""What a run comes to: the numbers of its last round, its best, the mean of its last ten."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..base.version import __version__
from ..evaluation.metrics import NAMES, Score
from ..settings.run import Run

LAST = 10  # rounds in the mean that CAPT's and FedPuReL's codes print last


@dataclass(frozen=True)
class Result:
    """`summary` is what `fedtailor run --json` prints; `rounds` are the lines of rounds.jsonl."""

    run: Run
    summary: dict[str, Any]
    rounds: list[dict[str, Any]]
    folder: Path | None = None


def numbers(score: Score | dict[str, Any]) -> dict[str, float | None]:
    values: dict[str, Any] = score.summary() if isinstance(score, Score) else score
    return {name: None if values[name] is None else round(values[name], 4) for name in NAMES}


def summarise(
    run: Run,
    zero_shot: tuple[Score, Score],  # global and personal
    rounds: list[dict[str, Any]],
    folder: Path | None,
    seconds: float,
    peak: float,
) -> dict[str, Any]:
    tested = [row for row in rounds if row["global"] is not None]
    theirs = next((row["untuned"] for row in reversed(tested) if row["untuned"]), None)  # as clients elsewhere found it
    tuned = {name: numbers(tested[-1][name] if tested else untuned) for name, untuned in both(zero_shot)}
    return {
        "method": run.method.name,
        "tuner": run.tuner.name,
        "data": run.data.name,
        "backbone": run.backbone.name,
        "labels": run.labels.name,
        "seed": run.seed,
        "rounds": run.rounds,
        "zero_shot": numbers(theirs if theirs and zero_shot[0].overall is None else zero_shot[0]),
        "zero_shot_personal": numbers(theirs or zero_shot[1]),
        **tuned,
        "worst_client": tested[-1]["personal"]["worst"] if tested else zero_shot[1].worst,
        "best": {name: best(tested, name) for name, _ in both(zero_shot)},
        f"last{LAST}": {name: last_mean(tested, name) for name, _ in both(zero_shot)},
        "pseudo_labels": rounds[-1]["pseudo"] if rounds else None,
        "bytes_up": sum(row["bytes_up"] for row in rounds),
        "bytes_down": sum(row["bytes_down"] for row in rounds),
        "seconds": round(seconds, 2),
        "peak_rss_mb": round(max([peak, *(row["peak_rss_mb"] for row in rounds)]), 1),
        "version": __version__,
        "run_dir": None if folder is None else str(folder),
    }


def both(zero_shot: tuple[Score, Score]) -> tuple[tuple[str, Score], tuple[str, Score]]:
    return ("global", zero_shot[0]), ("personal", zero_shot[1])


def best(tested: list[dict[str, Any]], name: str) -> dict[str, Any] | None:
    """The round with the best overall accuracy. Chosen by the test set: a record, not a result."""
    known = [row for row in tested if row[name]["overall"] is not None]
    if not known:
        return None
    row = max(known, key=lambda row: row[name]["overall"])
    return {"round": row["round"], **numbers(row[name])}


def last_mean(tested: list[dict[str, Any]], name: str) -> dict[str, float | None] | None:
    """Over the tests of the last ten rounds."""
    if not tested:
        return None
    tested = [row for row in tested if row["round"] > tested[-1]["round"] - LAST]
    means: dict[str, float | None] = {}
    for number in NAMES:
        known = [row[name][number] for row in tested if row[name][number] is not None]
        means[number] = round(float(np.mean(known)), 4) if known else None
    return means
