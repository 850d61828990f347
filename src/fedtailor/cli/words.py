"""What the verbs share: arguments, output, and from words to a run."""

from __future__ import annotations

import json
import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from ..base.errors import UserError

Words = Annotated[
    list[str] | None, typer.Argument(metavar="[METHOD] [KEY=VALUE]...", help="a method or a run.toml, then settings")
]
Json = Annotated[bool, typer.Option("--json", help="print one JSON object on stdout, nothing else")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="no progress")]


def waiting(what: str, quiet: bool = False) -> AbstractContextManager[object]:
    """Something to look at while torch is imported or a dataset opened."""
    console = Console(stderr=True)
    return console.status(what) if console.is_terminal and not quiet else nullcontext()


def emit(value: Any) -> None:
    sys.stdout.write(json.dumps(value, indent=1, ensure_ascii=False) + "\n")


def run_of(words: list[str], seed: int | None = None) -> Any:
    """The run that a command line's words describe."""
    from ..settings.keys import parse
    from ..settings.run import make_run, read_toml

    method = words[0] if words and "=" not in words[0] else None
    settings = parse(words[1:] if method else words)
    if seed is not None:
        if "seed" in settings:
            raise UserError("seed is given twice, as seed= and as --seed")
        settings["seed"] = seed
    if method and method.endswith(".toml"):
        return read_toml(Path(method), settings)
    return make_run(method, settings)


def data_word(settings: Any) -> str:
    """A run's data, as part of a folder's name."""
    form, colon, path = settings.data.name.partition(":")
    return f"{form}-{Path(path).resolve().stem}" if colon else form


def new_folder(name: str) -> Path:
    """runs/NAME, or runs/NAME-2 and so on if that is taken."""
    base = Path("runs") / name
    folder, n = base, 1
    while folder.exists():
        n += 1
        folder = base.with_name(f"{base.name}-{n}")
    return folder
