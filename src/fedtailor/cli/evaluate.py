"""`fedtailor evaluate`"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Column, Table

from ..base.terminal import Terminal
from .arguments import Json, Quiet
from .output import emit
from .predict import Classes, Client, Clip, ModelPath, open_model, whose

if TYPE_CHECKING:
    from ..use.evaluate import Evaluated


def evaluate(
    model: ModelPath,
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER|TABLE", help="a folder of pictures for each class, or a CSV table")
    ],
    client: Client = None,
    classes: Classes = "",
    backbone: Clip = "",
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Measure a tuned model on labelled pictures, beside zero-shot CLIP: fedtailor evaluate runs/mine photos"""
    tuned = open_model(model, classes, backbone, quiet)
    from ..use.evaluate import evaluate as measure
    from .progress import Late

    told = whose(tuned, client)
    with Late(enabled=not quiet) as progress:
        found = measure(tuned, folder, client, progress.on_progress)
    names = tuned.classes
    if as_json:
        emit(
            {
                "model": str(tuned.folder),
                "by": "shared" if client is None else client,
                "notes": told,
                "pictures": sum(found.counts),
                "zero_shot": found.zero_shot.values,
                "tuned": found.tuned.values,
                "calibration_error": found.ece,
                "per_class": {
                    name: {"pictures": n, "zero_shot": before, "tuned": after}
                    for name, n, before, after in rows(names, found)
                },
            }
        )
        return
    console = Terminal()
    for line in told:
        Terminal(stderr=True).print(line, highlight=False)
    for table in tables(names, found, tuned.facts.method["name"]):
        console.print(table)
    console.print(
        f"{sum(found.counts)} pictures · expected calibration error {found.ece:.2f}%"
        + ("" if tuned.calibration(client) else " (the model is not calibrated)"),
        highlight=False,
    )


def rows(names: tuple[str, ...], found: Evaluated) -> list[tuple[str, int, float | None, float | None]]:
    """Of each class that has pictures."""
    every = zip(names, found.counts, found.zero_shot.per_class, found.tuned.per_class, strict=True)
    return [row for row in every if row[1]]


def tables(names: tuple[str, ...], found: Evaluated, method: str) -> list[Table]:
    from ..evaluation.metrics import METRICS
    from ..report.tables import gain, percent, shown_metrics

    shown = shown_metrics(score.values for score in (found.zero_shot, found.tuned))
    headings = [Column(METRICS[name].heading, justify="right") for name in shown]
    whole = Table("", *headings, title="accuracy in %", title_justify="left")
    before, after = ([score.values[name] for name in shown] for score in (found.zero_shot, found.tuned))
    whole.add_row("zero-shot", *map(percent, before))
    whole.add_row(method, *map(percent, after), style="bold")
    whole.add_row("", *map(gain, after, before))
    beside = [Column(name, justify="right") for name in ("pictures", "zero-shot", method, "")]
    single = Table("class", *beside, title="class by class", title_justify="left")
    for name, count, untuned, tuned in rows(names, found):
        single.add_row(name, str(count), percent(untuned), percent(tuned), gain(tuned, untuned))
    return [whole, single]
