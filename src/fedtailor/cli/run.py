"""`fedtailor run`"""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from ..base.errors import UserError
from ..runs.places import new_folder, run_name
from .arguments import Json, Quiet, Words, run_of
from .output import emit, print_result, waiting
from .stopping import command, resumable


def run(
    words: Words = None,
    out: Annotated[Path | None, typer.Option(help="the run's folder; default: a new one under runs/")] = None,
    resume: Annotated[Path | None, typer.Option(help="go on with the run in this folder")] = None,
    seed: Annotated[int | None, typer.Option(help="short for seed=N")] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Run a method: fedtailor run promptfl data=drawn-lt data.alpha=0.1 rounds=40"""
    with waiting("starting", quiet):
        from ..runs import execute
        from ..settings.keys import parse
        from .progress import Progress

    if resume:
        given = parse(words or []) if all("=" in word for word in words or []) else {}
        if out or seed is not None or (words and set(given) != {"rounds"}):
            raise UserError("--resume takes all settings from the run's folder but rounds=N; give no others")
        folder, go = resume, partial(execute.resume, resume, **given)
    else:
        settings = run_of(words or [], seed)
        folder = out or new_folder(run_name(settings))
        go = partial(execute.run, settings, out=folder)

    def how() -> str:
        begun = (folder / "run.toml").is_file()
        return f"go on with: {command('run', '--resume', folder)}" if begun else "no round was begun"

    with resumable(how), Progress(enabled=not quiet) as progress:
        result = go(callback=progress)
    if as_json:
        emit(result.summary)
    else:
        print_result(result.summary, result.run.data.server == "test", result.run.data.validation)
