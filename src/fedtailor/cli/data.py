"""`fedtailor data …`"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Column, Table
from rich.text import Text

from ..base.errors import UserError
from ..base.terminal import Terminal
from .arguments import ANY_OPTION, Json, no_options, run_of
from .output import display, emit, say, waiting

if TYPE_CHECKING:
    from ..data.check import Checked

data_app = typer.Typer(help="Look at datasets and at who holds what.", no_args_is_help=True)


@data_app.command("show", context_settings=ANY_OPTION)
def data_show(
    words: Annotated[list[str] | None, typer.Argument(metavar="[NAME] [KEY=VALUE]...", callback=no_options)] = None,
    png: Annotated[Path | None, typer.Option(help="also draw the heatmap into this PNG file")] = None,
    seed: Annotated[int | None, typer.Option(help="short for seed=N")] = None,
    as_json: Json = False,
) -> None:
    """Count a dataset's images by class and client: fedtailor data show cifar100-lt data.alpha=0.05 clients=20"""
    with waiting("opening the data"):
        from ..report.heatmap import TerminalHeatmap, counts_table, save_heatmap
        from ..simulation.build import deal

        settings = run_of(data_words(words or []), seed)
        federation, groups = deal(settings)
    dataset = federation.dataset
    labelled = dataset.train.labels is not None
    if png:
        if not labelled:
            raise UserError("there are no training labels to draw")
        try:
            save_heatmap(federation.counts, png)
        except (OSError, ValueError) as error:
            raise UserError(f"cannot draw into {png}: {error}") from error
    if as_json:
        facts = {
            "data": settings.data.name,
            "classes": dataset.classes,
            "clients": federation.clients,
            "train": len(dataset.train),
            "test": len(dataset.test),
            "groups": {name: members.tolist() for name, members in groups.items()} if groups.some else None,
            "counts": federation.counts.tolist() if labelled else None,
            "sizes": federation.sizes.tolist(),
            "test_sizes": federation.test_sizes.tolist(),
        }
        emit(facts)
        return
    display(counts_table(federation, groups))
    if labelled:
        Terminal().print(TerminalHeatmap(federation.counts))


def data_words(words: list[str]) -> list[str]:
    """`NAME key=value …` as settings of a run."""
    return [f"data={words[0]}", *words[1:]] if words and "=" not in words[0] else words


@data_app.command("check")
def data_check(
    name: Annotated[str, typer.Argument(help="fedtailor list datasets")],
    root_folder: Annotated[Path | None, typer.Option("--root", help="where the files are")] = None,
    as_json: Json = False,
) -> None:
    """Read every image and tell what will not be used, what is there twice and what is missing; exit code 1 if
    something is likely wrong."""
    from ..data import check_dataset
    from .progress import Progress

    with Progress(enabled=True) as progress:
        found = check_dataset(name, root_folder, progress.on_progress)
    if as_json:
        emit(found.document())
    else:
        print_checked(found)
    if not found.ok:
        raise typer.Exit(1)


def print_checked(found: Checked) -> None:
    from ..data.check import in_words

    console = Terminal(highlight=False)
    if found.facts:
        sides = f"; shorter sides of {in_words(found.sides)}" if found.sides else ""
        facts = ", ".join(f"{count} {what}" for what, count in found.facts.items())
        console.print(f"{facts}{sides}")
    for note in found.notes:
        console.print(note, style="yellow")
    if found.findings:
        table = Table("", "found", Column("", justify="right"), Column("such as", overflow="fold"))
        for finding in sorted(found.findings, key=lambda finding: not finding.wrong):
            mark = Text("wrong?", "red") if finding.wrong else "note"
            table.add_row(mark, finding.what, str(finding.count), "\n".join(finding.examples))
        console.print(table)
    if found.ok:
        console.print(f"{found.name}: nothing wrong")


@data_app.command("split", context_settings=ANY_OPTION)
def data_split(
    out: Annotated[Path, typer.Option(metavar="DIR", help="a new folder for the sites' folders")],
    words: Annotated[list[str] | None, typer.Argument(metavar="[NAME] [KEY=VALUE]...", callback=no_options)] = None,
    unlabelled: Annotated[bool, typer.Option("--unlabelled", help="training images in one heap, no labels")] = False,
    seed: Annotated[int | None, typer.Option(help="short for seed=N")] = None,
    as_json: Json = False,
) -> None:
    """Deal a dataset out into image files, a folder a site: fedtailor data split drawn-lt clients=3 --out sites"""
    with waiting("opening the data"):
        from ..data.export import write_sites
        from ..simulation.build import deal
        from .progress import Progress

        federation, _ = deal(run_of(data_words(words or []), seed))
    with Progress(enabled=True) as progress:
        summary = write_sites(federation, out, unlabelled, progress.on_progress)
    if as_json:
        emit(summary)
        return
    train, test = sum(summary["train"]), sum(summary["test"])
    say(f"{federation.clients} sites with {train} training and {test} test images, in {out}")
    say(f"try them in one process: {summary['run']}")
