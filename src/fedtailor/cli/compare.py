"""`fedtailor compare`"""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from ..base.errors import UserError, unknown
from ..runs.places import data_word, new_folder
from .arguments import Json, Quiet, no_options
from .output import display, emit, say, waiting, write
from .stopping import command, resumable

FORMATS = {"table": "", "markdown": "md", "csv": "csv", "latex": "tex", "json": "json"}  # and how its file ends


def compare(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="METHOD[:KEY=VALUE,...]... [KEY=VALUE]...", help="rows, then settings", callback=no_options
        ),
    ] = None,
    seeds: Annotated[str | None, typer.Option(help="how many (3: 0, 1, 2) or which (5,7); default: 1")] = None,
    number: Annotated[str | None, typer.Option(metavar="last|last10|best", help="of each run; default: last")] = None,
    out: Annotated[Path | None, typer.Option(help="the folder; one with this comparison is gone on with")] = None,
    resume: Annotated[Path | None, typer.Option(help="go on with the comparison in this folder")] = None,
    all_: Annotated[bool, typer.Option("--all", help="every method, each with its own settings")] = False,
    runs: Annotated[bool, typer.Option("--runs", help="the words are folders of finished runs: compare those")] = False,
    over: Annotated[
        list[str] | None, typer.Option(metavar="KEY=V1,V2,...", help="at each of these points; may be repeated")
    ] = None,
    show: Annotated[str | None, typer.Option(help="with --over: which column; default: overall")] = None,
    tune: Annotated[
        list[str] | None, typer.Option(metavar="KEY=V1,V2,...", help="each row at its own best, by validation")
    ] = None,
    tune_by: Annotated[str | None, typer.Option(help="balanced (default), personal, overall, tail …")] = None,
    tune_seeds: Annotated[str | None, typer.Option(help="how many, or which, to choose by; default: seed 0")] = None,
    tune_rounds: Annotated[int | None, typer.Option(help="fewer rounds to choose by")] = None,
    validation: Annotated[
        float | None, typer.Option(help="part of the training set to choose by; default: 0.2")
    ] = None,
    against: Annotated[str | None, typer.Option(metavar="ROW", help="show every row's difference to this one")] = None,
    sort: Annotated[str | None, typer.Option(help="by a column, best first: overall, tail …")] = None,
    jobs: Annotated[int, typer.Option(help="runs at a time; best with threads=1")] = 1,
    form: Annotated[str, typer.Option("--format", metavar="|".join(FORMATS), help="of what is printed")] = "table",
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Compare methods on one federation: fedtailor compare promptfl promptprox:method.mu=0.1 rounds=20 --seeds 3"""
    if form not in FORMATS:
        raise unknown("format", form, FORMATS)
    with waiting("starting", quiet):
        from ..runs import comparison, comparison_plan, comparison_spec, finished
        from .progress import Comparing

    show_by: dict[str, Any] = {"number": number, "sort": sort, "show": show, "against": against}
    tune_how: dict[str, Any] = {"by": tune_by, "seeds": tune_seeds, "rounds": tune_rounds, "validation": validation}
    shown, chosen = ({key: it for key, it in given.items() if it is not None} for given in (show_by, tune_how))
    form, settled = "json" if as_json else form, bool(seeds or all_ or over or tune or chosen)
    if runs:
        if settled or resume:
            raise UserError("--runs compares finished runs as they are; give their folders, and how to show them")
        made = finished.compare_finished([Path(word) for word in words or []], out=out, **shown)
        output(made.summary, form, "against" in shown, out)
        return
    if resume:
        if words or out or settled:
            raise UserError("--resume takes all settings from the comparison's folder; give no others")
        plan, noted = comparison_plan.load_plan(resume)
        folder, shown = resume, {**asdict(noted), **shown}
    else:
        rows, settings = comparison_spec.split_words(words or [])
        rows = [*(name for name in comparison_spec.every_method() if all_ and name not in rows), *rows]
        plan = comparison_plan.from_words(rows, settings, seeds, over or [], tune or [], chosen)
        folder = out or new_folder(f"compare-{data_word(plan.first.rows[0].run)}")
        shown = {"sort": "overall", **shown} if all_ else shown

    def how() -> str:
        begun = (folder / comparison_spec.NOTE).is_file()
        return f"go on with: {command('compare', '--resume', folder)}" if begun else "no run was begun"

    with resumable(how), Comparing(enabled=not quiet) as progress:
        made = comparison.compare(plan, out=folder, callback=progress, jobs=jobs, **shown)
    output(made.summary, form, bool(shown.get("against")), folder)


def output(summary: dict[str, Any], form: str, differences: bool, folder: Path | None) -> None:
    from ..report.comparison import comparison_table
    from ..report.comparison_formats import FORMATS as WRITERS

    if form == "json":
        emit(summary)
    elif form != "table":
        write(WRITERS[FORMATS[form]](summary))
    else:
        display(comparison_table(summary, differences))
        if folder:
            say(str(folder / "table.md"), "bold")
