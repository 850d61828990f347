"""Arguments that several verbs take, and what they stand for."""

from difflib import get_close_matches
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import typer

from ..base.errors import UserError

ANY_OPTION = {"ignore_unknown_options": True}  # of commands that take settings: no_options tells of those not known


def no_options(context: typer.Context, words: list[str] | None) -> list[str] | None:
    """Settings are words, key=value. Who writes them as options is told how."""
    for word, following in pairwise([*(words or []), ""]):
        if not word.startswith("-"):
            continue
        name, _, value = word.lstrip("-").partition("=")
        options = sorted({option for it in context.command.params for option in it.opts if option.startswith("--")})
        if near := get_close_matches(f"--{name}", options, n=1, cutoff=0.8):
            raise UserError(f"unknown option {word!r}; did you mean {near[0]!r}? ({context.command_path} --help)")
        value = value or ("" if following.startswith("-") or "=" in following else following) or "…"
        raise UserError(
            f"unknown option {word!r}; settings are written without dashes: {name.replace('-', '_')}={value} "
            f"({context.command_path} --help has the options)"
        )
    return words


METHOD_AND_SETTINGS = typer.Argument(
    metavar="[METHOD] [KEY=VALUE]...", help="a method or a run.toml, then settings", callback=no_options
)
Words = Annotated[list[str] | None, METHOD_AND_SETTINGS]
Json = Annotated[bool, typer.Option("--json", help="print one JSON object on stdout, nothing else")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="no progress")]


def run_of(words: list[str], seed: int | None = None) -> Any:
    """The settings.Run that a command line describes."""
    from ..settings.keys import parse
    from ..settings.run import make_run, read_toml

    method = words[0] if words and "=" not in words[0] else None
    settings = parse(words[1:] if method else words)
    if seed is not None:
        if "seed" in settings:
            raise UserError("seed is given twice, as seed= and as --seed")
        settings["seed"] = seed
    return read_toml(Path(method), settings) if method and method.endswith(".toml") else make_run(method, settings)
