"""`fedtailor plot`"""

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from ..base.errors import UserError, unknown
from .output import display, say, waiting


def plot(
    runs: Annotated[
        list[Path] | None, typer.Argument(metavar="[RUN]...", help="run folders, or a comparison's")
    ] = None,
    figure: Annotated[
        str | None, typer.Option(metavar="NAME", help="which; default: all that the records allow")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="NAME.png or NAME.svg; without --figure a folder")
    ] = None,
    list_: Annotated[bool, typer.Option("--list", help="which figures there are, and what they need")] = False,
) -> None:
    """Draw the papers' figures from what runs recorded: fedtailor plot runs/capt runs/promptfl --figure curves"""
    from ..report.figures import FIGURES

    if list_ or not runs:
        if figure or out:
            raise UserError("--figure and --out need a run folder to draw: fedtailor plot RUN --figure NAME")
        display(figures_table())
        return
    if figure is not None and figure not in FIGURES:
        raise unknown("figure", figure, FIGURES, "fedtailor plot --list")
    folder = runs[0] / "figures" if len(runs) == 1 else Path("figures")
    if figure is not None:
        draw_one(figure, runs, out or folder / f"{figure}.png")
    else:
        draw_all(runs, out or folder)


def figures_table() -> Table:
    from ..report.figures import FIGURES

    table = Table("name", "what it shows", "in the papers", "needs", show_edge=False)
    table.columns[0].no_wrap = True
    for name, figure in FIGURES.items():
        needs = [f"record={figure.record}"] if figure.record else []
        needs += [f"(record={figure.optional})"] if figure.optional else []
        table.add_row(name, figure.idea, figure.paper, ", ".join([*needs, *([] if figure.several else ["one run"])]))
    return table


def draw_one(name: str, runs: list[Path], path: Path) -> None:
    from ..report.figures import draw
    from ..runs.records import read_runs

    with waiting("drawing"):
        files, without = draw(name, read_runs(runs), path)
    if without:
        note = f"not in it, for want of a round or of its record: {', '.join(str(run.folder) for run in without)}"
        say(note, stderr=True)
    say(" ".join(map(str, files)))


def draw_all(runs: list[Path], folder: Path) -> None:
    """What cannot be drawn is told, with the reason."""
    from ..report.figures import FIGURES, draw
    from ..runs.records import read_runs

    if folder.suffix:
        raise UserError(f"--out {folder}: without --figure it is a folder, for all figures")
    found, reasons = read_runs(runs), list[str]()
    for name in FIGURES:
        try:
            with waiting(f"drawing {name}"):
                files, _ = draw(name, found, folder / f"{name}.png")
            say(" ".join(map(str, files)))
        except UserError as error:
            reasons.append(f"not drawn: {error}" if str(error).startswith(name) else f"not drawn: {name}: {error}")
    if len(reasons) == len(FIGURES):
        raise UserError(f"no figure could be drawn; {reasons[0]}")
    for reason in reasons:
        say(reason, "dim", stderr=True)
