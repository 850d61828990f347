"""`fedtailor compare`"""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from ..base.errors import UserError
from .arguments import Json, Quiet, data_word, new_folder
from .output import emit, waiting


def compare(
    words: Annotated[
        list[str] | None, typer.Argument(metavar="METHOD[:KEY=VALUE,...]... [KEY=VALUE]...", help="rows, then settings")
    ] = None,
    seeds: Annotated[str | None, typer.Option(help="how many (3: 0, 1, 2) or which (5,7); default: 1")] = None,
    number: Annotated[str | None, typer.Option(metavar="last|last10|best", help="of each run; default: last")] = None,
    out: Annotated[Path | None, typer.Option(help="the folder; one with this comparison is gone on with")] = None,
    resume: Annotated[Path | None, typer.Option(help="go on with the comparison in this folder")] = None,
    all_: Annotated[bool, typer.Option("--all", help="every method, each with its own settings")] = False,
    sort: Annotated[str | None, typer.Option(help="by a column, best first: overall, tail …")] = None,
    jobs: Annotated[int, typer.Option(help="runs at a time; best with threads=1")] = 1,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Compare methods on one federation: fedtailor compare promptfl promptprox:method.mu=0.1 rounds=20 --seeds 3"""
    with waiting("starting", quiet):
        from ..report.comparison import comparison_table
        from ..runs import comparison, comparison_spec
        from .progress import Comparing

    if resume:
        if words or out or seeds or all_:
            raise UserError("--resume takes all settings from the comparison's folder; give no others")
        compared, noted, column = comparison_spec.load_spec(resume)
        folder, number, sort = resume, number or noted, sort or column
    else:
        rows, settings = comparison_spec.split_words(words or [])
        rows = [*(name for name in comparison_spec.every_method() if all_ and name not in rows), *rows]
        compared = comparison_spec.make_spec(rows, settings, seeds)
        folder = out or new_folder(f"compare-{data_word(compared.rows[0].run)}")
        number, sort = number or "last", sort or ("overall" if all_ else None)
    with Comparing(enabled=not quiet) as progress:
        try:
            result = comparison.compare(compared, out=folder, number=number, callback=progress, sort=sort, jobs=jobs)
        except KeyboardInterrupt:
            begun = (folder / comparison_spec.NOTE).is_file()
            hint = f"go on with: fedtailor compare --resume {folder}" if begun else "no run was begun"
            raise UserError(f"stopped; {hint}") from None
    if as_json:
        emit(result.summary)
        return
    console = Console()
    console.print(comparison_table(result.summary))
    console.print(str(folder / "table.md"), style="bold", markup=False, highlight=False)
