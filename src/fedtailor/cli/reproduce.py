"""`fedtailor reproduce`"""

from pathlib import Path
from typing import Annotated

import typer

from ..base.errors import UserError
from .arguments import Json, Quiet, no_options
from .output import display, emit, say, waiting
from .stopping import resumable


def reproduce(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME] [KEY=VALUE]...", help="such as capt/table1; none: list them", callback=no_options
        ),
    ] = None,
    scale: Annotated[str, typer.Option(metavar="paper|lab|smoke", help="as printed, or with less")] = "paper",
    cells: Annotated[list[str] | None, typer.Option(metavar="GLOB", help="only these, as 'cifar10-lt/capt/*'")] = None,
    seeds: Annotated[str | None, typer.Option(help="how many or which (5,7); default: 3, at scale smoke 1")] = None,
    jobs: Annotated[int, typer.Option(help="runs at a time; best with threads=1")] = 1,
    tune: Annotated[
        list[str] | None, typer.Option(metavar="KEY=V,V…", help="rows at their own best values; not at scale paper")
    ] = None,
    tune_rounds: Annotated[int | None, typer.Option(help="fewer rounds to choose by")] = None,
    out: Annotated[Path, typer.Option(help="the folder; it may hold many tables, and is gone on with")] = Path(
        "runs/reproduce"
    ),
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="show cells, settings, time and memory; run nothing")
    ] = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """The papers' tables and figures, published and measured numbers side by side: fedtailor reproduce capt/table1"""
    from ..runs.table_recipe import catalogue, read

    name, *changes = words or [""]
    if not name:
        from ..report.reproduction import list_table

        emit(catalogue()) if as_json else display(list_table(catalogue()))
        return
    if "=" in name:
        raise UserError(f"{name!r}: the first word names a table, such as capt/table1; fedtailor reproduce lists them")
    recipe = read(name)
    with waiting("starting", quiet):
        from ..report.reproduction import forecast, plan_lines, reproduction_table
        from ..runs import reproduction
        from ..runs.comparison_plan import read_values
        from ..runs.comparison_spec import read_seeds
        from ..runs.table_plan import make_plan
        from ..settings.keys import parse
        from .progress import Comparing

    plan, grid, tuned = make_plan(recipe, scale, cells or (), parse(changes)), read_values(tune or [], "--tune"), {}
    if grid and scale == "paper":
        raise UserError("at scale paper the rates are the print's; --tune is for --scale lab")
    chosen = read_seeds(seeds or (1 if scale == "smoke" else 3))
    with resumable(lambda: "the same command goes on"), Comparing(enabled=not quiet) as progress:
        foreseen = reproduction.foresee(plan, chosen, out, jobs, progress, fetch=not dry_run)
        if not dry_run:
            if not quiet and not foreseen["lacking"]:
                say(forecast(foreseen), stderr=True)
            if grid:
                tuned = reproduction.tune_rows(plan, grid, out, jobs, progress, rounds=tune_rounds)
                own = {line: it.chosen for line, it in tuned.items()}
                plan = make_plan(recipe, scale, cells or (), parse(changes), own)
            result = reproduction.reproduce(plan, chosen, out, jobs, progress, tuned)
    if as_json:
        emit(foreseen if dry_run else result)
        return
    if dry_run:
        for line in plan_lines(foreseen):
            say(*line)
        return
    display(reproduction_table(result))
    for command in result["plot"]:
        say(f"to draw it: {command}")
    say(f"{result['folder']}/table.md", "bold")
