"""Arguments that several verbs take, and what they stand for."""

from difflib import get_close_matches
from itertools import pairwise
from typing import Annotated

import typer

from ..base.errors import UserError
from ..settings.words import run_of as run_of

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
