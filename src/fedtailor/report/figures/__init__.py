"""The papers' figures, drawn from records of runs: `fedtailor plot RUN --figure curves`.

A figure is a module with two functions: `table` makes all the numbers of the figure from the records, and `paint` draws
that table and nothing else. So the CSV next to a picture is the picture. A new one is a module and a line in FIGURES.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from ...base.errors import UserError
from . import (
    angle,
    balance,
    bandit,
    branches,
    curves,
    drift,
    gains,
    heatmap,
    per_class,
    pseudo_labels,
    sweep,
    tkl,
    traffic,
    tsne,
    variance,
)  # fmt: skip
from .record import RunRecord, Table
from .style import save

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas


class Source(Protocol):
    """The module of a figure."""

    def table(self, runs: Sequence[RunRecord]) -> Table: ...
    def paint(self, canvas: Canvas, table: Table) -> None: ...


@dataclass(frozen=True)
class Figure:
    source: Source
    idea: str
    paper: str  # where the papers have it
    record: str = ""  # the diagnostic that runs must have recorded
    several: bool = True  # False: it is a figure of one run
    optional: str = ""  # a diagnostic that it shows, too, if there is one


FIGURES = {
    "curves": Figure(curves, "accuracy over the rounds, head to tail", "CAPT Fig. 4, FedPuReL Fig. 9"),
    "gains": Figure(gains, "gains over zero-shot CLIP, head to tail", "CAPT Fig. 3"),
    "per-class": Figure(per_class, "each class's accuracy, the most frequent first", ""),
    "sweep": Figure(
        sweep, "accuracy against one setting, or a grid of two", "CAPT Figs. 1, 6, FedCoPL Fig. 3, FedPuReL Fig. 8"
    ),
    "heatmap": Figure(
        heatmap, "clients × classes, cluster by cluster", "CAPT Fig. 7", several=False, optional="clusters"
    ),
    "tsne": Figure(tsne, "t-SNE of text features, general and class-aware", "CAPT Fig. 5", several=False),
    "bandit": Figure(bandit, "when the server aggregates, and why", "CAPT App. A", "bandit", several=False),
    "variance": Figure(variance, "gradients' variance within and between clients", "CAPT App. F", "variance"),
    "drift": Figure(drift, "how differently clients change their prompts", "FedCoPL Fig. 2", "drift"),
    "pseudo-labels": Figure(pseudo_labels, "accuracy and coverage of pseudo-labels", "FedCoPL Sec. 3.3", "labels"),
    "branches": Figure(branches, "which branch right predictions are owed to", "FedPuReL Fig. 5b", "branches"),
    "tkl": Figure(tkl, "distance from zero-shot CLIP", "FedPuReL Fig. 6", "tkl"),
    "angle": Figure(angle, "angle between task and alignment gradient", "FedPuReL Fig. 7", "angle"),
    "balance": Figure(balance, "how evenly classes are known", "FedPuReL Sec. 4.5", "balance"),
    "bytes": Figure(traffic, "accuracy against bytes sent", ""),
}


def draw(name: str, runs: Sequence[RunRecord], path: Path) -> tuple[list[Path], list[RunRecord]]:
    """The files that were written, and the runs that are not in the figure because they did not record it."""
    figure, first = FIGURES[name], runs[0].folder
    if not figure.several and len(runs) > 1:
        raise UserError(f"{name} is a figure of one run, got {len(runs)}; name one, such as {first}")
    if not any(run.rounds for run in runs):
        raise UserError(f"{name}: no round is recorded in {first}" + (" and the others" if len(runs) > 1 else ""))
    usable = [run for run in runs if run.rounds and (not figure.record or run.recorded(figure.record))]
    if not usable:
        again = f"fedtailor run {first / 'run.toml'} record={figure.record} --out NEW"
        raise UserError(f"{name} needs a run with record={figure.record}, which {first} is not; run it again: {again}")
    table = figure.source.table(usable)
    if not table:
        raise UserError(f"{name}: the records of {usable[0].folder} hold no number to draw")
    return save(table, figure.source.paint, path), [run for run in runs if run not in usable]
