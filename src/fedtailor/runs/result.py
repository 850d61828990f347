"""The result of a run: the numbers of its last round, of its best, and the mean of its last ten."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..base.version import __version__
from ..evaluation.metrics import METRICS, Score
from ..settings.run import Run
from ..simulation.auto import engine_name
from ..simulation.build import Experiment
from .result_file import LAST, PARTS


@dataclass(frozen=True)
class Result:
    """`summary` is what `fedtailor run --json` prints; `rounds` are the lines of rounds.jsonl."""

    run: Run
    summary: dict[str, Any]
    rounds: list[dict[str, Any]]
    folder: Path | None = None


def summarise(
    experiment: Experiment,
    zero_shot: tuple[Score, Score],  # global and personal
    rounds: list[dict[str, Any]],
    folder: Path | None,
    seconds: float,
    peak: float,
) -> dict[str, Any]:
    run, federation = experiment.run, experiment.federation
    tested = [row for row in rounds if row["global"] is not None]
    counted = {part: rounds_with(part, tested, run.rounds) for part in PARTS}
    untuned = {part: score.row(federation.class_names) for part, score in zip(PARTS, zero_shot, strict=True)}
    last = tested[-1] if tested else untuned
    theirs = next((row["untuned"] for row in reversed(tested) if row["untuned"]), None)  # as remote clients found it
    return {
        "method": run.method.name,
        "tuner": run.tuner.name,
        "data": run.data.name,
        "backbone": run.backbone.name,
        "labels": run.labels.name,
        "seed": run.seed,
        "engine": engine_name(experiment),
        "threads": run.threads,
        "rounds": run.rounds,
        "zero_shot": numbers(theirs if theirs and zero_shot[0].overall is None else untuned["global"]),
        "zero_shot_personal": numbers(theirs or untuned["personal"]),
        **{part: numbers(last[part]) for part in PARTS},
        "worst_client": last["personal"]["worst"],
        "balanced": {part: balanced(last[part]) for part in PARTS},
        "best": {part: best(counted[part], part) for part in PARTS},
        f"last{LAST}": {part: last_mean(counted[part], part) for part in PARTS},
        "never_took_part": absent(map(federation.name_of, run.method.value.everyone(run.clients)), rounds),
        "pseudo_labels": rounds[-1]["pseudo"] if rounds else None,
        "privacy": spent_privacy(rounds),
        "backdoor": tested[-1]["diagnostics"].get("backdoor", {}).get("success") if tested else None,
        "bytes_up": sum(row["bytes_up"] for row in rounds),
        "bytes_down": sum(row["bytes_down"] for row in rounds),
        "seconds": round(seconds, 2),
        "peak_rss_mb": round(max([peak, *(row["peak_rss_mb"] for row in rounds)]), 1),
        "version": __version__,
        "run_dir": None if folder is None else str(folder),
        "notes": list(experiment.notes),
    }


def spent_privacy(rounds: list[dict[str, Any]]) -> dict[str, Any] | None:
    """What the last round that told anything came to, and after how many rounds that was."""
    told = [row for row in rounds if row.get("privacy")]
    if not told:
        return None
    last = next((row for row in told if row["privacy"]["spent"]), told[-1])  # closing rounds may follow
    return {**told[-1]["privacy"], "spent": last["privacy"]["spent"], "rounds": last["round"] - (not last["cohort"])}


def absent(everyone: Iterable[str], rounds: list[dict[str, Any]]) -> list[str]:
    """Clients that no round has learned from: in no cohort, or never with a reply that counts."""
    heard = {name for row in rounds for name in row["cohort"] if name not in row["dropped"]}
    return [name for name in everyone if name not in heard] if rounds else []


def numbers(*scores: dict[str, Any]) -> dict[str, float | None]:
    """The mean of each metric over these scores, where they have it: a run may have begun before there was a metric."""
    known = {name: [score[name] for score in scores if score.get(name) is not None] for name in METRICS}
    return {name: round(float(np.mean(values)), 4) if values else None for name, values in known.items()}


def balanced(score: dict[str, Any]) -> float | None:
    """The mean accuracy of the classes that have test pictures, each counting the same."""
    known = [value for value in score["per_class"].values() if value is not None]
    return round(float(np.mean(known)), 4) if known else None


def rounds_with(part: str, tested: list[dict[str, Any]], shared: int) -> list[dict[str, Any]]:
    """The tests that a number over several rounds may count, of a run with so many shared rounds.

    Parameters that clients train only in closing rounds are not there before: until then the personal model is the
    shared one. Closing rounds leave that as it is, so they are no further rounds of the global model.
    """
    closing = [row for row in tested if row["round"] > shared]
    if part == "personal" and closing:
        return closing
    return list({(t := min(row["round"], shared)): {**row, "round": t} for row in tested}.values())


def best(tested: list[dict[str, Any]], part: str) -> dict[str, Any] | None:
    """The round with the best overall accuracy. Chosen by the test set: a record, not a result."""
    known = [row for row in tested if row[part]["overall"] is not None]
    row = max(known, key=lambda row: row[part]["overall"], default=None)
    return None if row is None else {"round": row["round"], **numbers(row[part])}


def last_mean(tested: list[dict[str, Any]], part: str) -> dict[str, float | None] | None:
    """Over the tests of the last ten rounds."""
    return numbers(*(row[part] for row in tested if row["round"] > tested[-1]["round"] - LAST)) if tested else None
