"""Differences between rows of a comparison, with 95% intervals.

With three seeds or more: paired over seeds, each of which has one federation and one series of cohorts for all rows, by
Student's t. With fewer: 1.96 standard errors by a bootstrap over test pictures, paired as well, since both rows are
asked about the same pictures. It says how sure a difference is between these very runs, and nothing about other seeds.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
from scipy.special import stdtrit

from ..base.rng import numpy_generator
from ..data.dataset import Indices
from ..data.groups import Groups
from ..evaluation.metrics import METRICS, Numbers, mean, score_parts
from .predictions import Answers, read_predictions
from .result_file import PARTS

SEEDS, PICTURES = "seeds", "pictures"  # what an interval is over
ENOUGH = 3  # seeds
RESAMPLES = 400  # give a standard error to within some four percent of itself
AT_ONCE = 1 << 20  # resampled pictures

Scores = dict[str, dict[str, float | None]]  # part → metric
Run = tuple[Scores, Path | None]  # its numbers and its folder
Scored = tuple[int, Scores, Path | None]  # with its seed
Interval = dict[str, float | None]  # mean, low, high
Resampled = dict[str, dict[str, Numbers]]  # part → metric → (RESAMPLES,)
Ask = Callable[[Path], tuple[Answers, Resampled] | None]  # for a run's folder


def differences(rows: Mapping[str, Sequence[Scored]], against: str, bootstrap: bool) -> dict[str, Any]:
    """Every row minus the reference. `bootstrap`: whether the numbers are those of the last test."""
    reference = {seed: (scores, place) for seed, scores, place in rows[against]}
    made, once = {}, cache(resample_run)  # the reference is asked for with every row
    for title, runs in rows.items():
        pairs = [(seed, (scores, place), reference[seed]) for seed, scores, place in runs if seed in reference]
        if title != against and pairs:
            made[title] = {
                "seeds": [seed for seed, *_ in pairs],
                **paired([pair[1:] for pair in pairs], once if bootstrap else None),
            }
    return {"against": against, "rows": made}


def paired(pairs: Sequence[tuple[Run, Run]], ask: Ask | None) -> dict[str, Any]:
    """Over seeds if there are enough; else over pictures, if that is known."""
    few = len(pairs) < ENOUGH
    drawn = resampled_difference([(mine, its) for (_, mine), (_, its) in pairs], ask) if few and ask else None
    made: dict[str, Any] = {"interval": (PICTURES if drawn else None) if few else SEEDS}
    for part in PARTS:
        made[part] = {}
        for name in METRICS:
            values = [minus(mine[part][name], its[part][name]) for (mine, _), (its, _) in pairs]
            made[part][name] = interval(values, drawn[part][name] if drawn else None)
    return made


def minus(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else a - b


def interval(values: Sequence[float | None], drawn: Numbers | None) -> Interval:
    """The mean difference over seeds, and between what it may lie."""
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return {"mean": None, "low": None, "high": None}
    middle, low, high = fmean(known), None, None
    if len(known) >= ENOUGH:
        half = float(stdtrit(len(known) - 1, 0.975)) * stdev(known) / len(known) ** 0.5
        low, high = middle - half, middle + half
    elif drawn is not None and not np.isnan(drawn).any():
        half = 1.96 * float(np.std(drawn))
        low, high = middle - half, middle + half
    return {"mean": round(middle, 4), "low": low and round(low, 4), "high": high and round(high, 4)}


def resampled_difference(places: Sequence[tuple[Path | None, Path | None]], ask: Ask) -> Resampled | None:
    """The mean difference over seeds in each resample; None if a run has not kept its predictions."""
    found: list[Resampled] = []
    for pair in places:
        mine, theirs = (None if place is None else ask(place) for place in pair)
        if mine is None or theirs is None or not mine[0].same_pictures(theirs[0]):
            return None
        a, b = mine[1], theirs[1]
        found.append({part: {name: a[part][name] - b[part][name] for name in METRICS} for part in PARTS})
    return {part: {name: np.mean([it[part][name] for it in found], axis=0) for name in METRICS} for part in PARTS}


def resample_run(folder: Path) -> tuple[Answers, Resampled] | None:
    answers = read_predictions(folder)
    return None if answers is None else (answers, resample(answers))


def resample(answers: Answers) -> Resampled:
    """Pictures drawn anew from those of the same class; for the personal number, of the same class and client."""
    K, C, groups = int(answers.owner.max(initial=-1)) + 1, len(answers.group), answers.groups
    label, owned = answers.label[: len(answers.shared)], answers.label[answers.picture]
    return {
        "global": resampled_scores(label, answers.shared, np.zeros_like(label), 1, label, groups),
        "personal": resampled_scores(owned, answers.personal, answers.owner, K, answers.owner * C + owned, groups),
    }


def resampled_scores(
    truth: Indices, said: Indices, owner: Indices, K: int, within: Indices, groups: Groups
) -> dict[str, Numbers]:
    """(RESAMPLES,) of every metric, mean over K clients. Who is asked about the same pictures has the same draws."""
    if not len(truth):
        return dict.fromkeys(METRICS, np.full(RESAMPLES, np.nan))
    rng = numpy_generator("bootstrap")
    order, sizes = np.argsort(within, kind="stable"), np.bincount(within)
    first, many = (np.cumsum(sizes) - sizes)[within], sizes[within]
    made: dict[str, list[Numbers]] = {name: [] for name in METRICS}
    some = max(1, AT_ONCE // len(truth))
    for begin in range(0, RESAMPLES, some):
        n = min(some, RESAMPLES - begin)
        drawn = order[first + (rng.random((n, len(truth))) * many).astype(np.int64)]
        sets = np.arange(n)[:, None] * K + owner[drawn]
        scores = score_parts(truth[drawn].ravel(), said[drawn].ravel(), sets.ravel(), n * K, groups)
        for name, values in scores.values.items():
            made[name].append(mean(values.reshape(n, K)))
    return {name: np.concatenate(parts) for name, parts in made.items()}
