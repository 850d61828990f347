"""`fedtailor run`"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..base.errors import UserError
from ..runs.places import new_folder, run_name
from .arguments import Json, Quiet, Words, run_of
from .output import emit, print_result, waiting
from .stopping import command, resumable

if TYPE_CHECKING:
    from ..runs.result import Result


def run(
    words: Words = None,
    out: Annotated[Path | None, typer.Option(help="the run's folder; default: a new one under runs/")] = None,
    resume: Annotated[Path | None, typer.Option(help="go on with the run in this folder")] = None,
    seed: Annotated[int | None, typer.Option(help="short for seed=N")] = None,
    track: Annotated[
        str, typer.Option(metavar="NAME,NAME", help="send each round to tensorboard, wandb or mlflow too")
    ] = "",
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Run a method: fedtailor run promptfl data=drawn-lt data.alpha=0.1 rounds=40"""
    with waiting("starting", quiet):
        from ..runs import execute
        from ..settings.keys import parse

    if resume:
        given = parse(words or []) if all("=" in word for word in words or []) else {}
        if out or seed is not None or (words and set(given) != {"rounds"}):
            raise UserError("--resume takes all settings from the run's folder but rounds=N; give no others")
        folder, go = resume, partial(execute.resume, resume, **given)
    else:
        settings = run_of(words or [], seed)
        folder = out or new_folder(run_name(settings))
        go = partial(execute.run, settings, out=folder)

    result = carry_out(go, folder, quiet, track)
    if as_json:
        emit(result.summary)
    else:
        print_result(result.summary, result.run.data.server == "test", result.run.data.validation)


def carry_out(go: Callable[..., Result], folder: Path, quiet: bool, track: str = "") -> Result:
    """A run, with progress; whoever stops it is told how to go on. `track`: who else hears of it."""
    from ..runs.callback import Together
    from ..trackers import track as tracking
    from .progress import Progress

    trackers = tracking(*filter(None, track.split(",")))

    def how() -> str:
        begun = (folder / "run.toml").is_file()
        words = ("run", "--resume", folder, *(("--track", track) if track else ()))
        return f"go on with: {command(*words)}" if begun else "no round was begun"

    with resumable(how), Progress(enabled=not quiet) as progress:
        return go(callback=Together(progress, trackers))
