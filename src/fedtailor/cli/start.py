"""`fedtailor start`"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.prompt import Confirm
from rich.table import Column, Table
from rich.text import Text

from ..base.errors import UserError
from ..base.folders import user_path
from ..base.terminal import Terminal, visible
from ..runs.places import new_folder, run_name
from .arguments import Json, Quiet, no_options
from .output import display, emit, print_result, say, waiting
from .run import carry_out
from .stopping import command

if TYPE_CHECKING:
    from ..data.survey import Survey
    from ..runs.proposal import Proposal

WORDS = typer.Argument(metavar="[FOLDER]... [KEY=VALUE]...", help="pictures, then settings", callback=no_options)


def start(
    words: Annotated[list[str] | None, WORDS] = None,
    out: Annotated[Path, typer.Option(metavar="FILE", help="the TOML file to write")] = Path("fedtailor.toml"),
    yes: Annotated[bool, typer.Option("--yes", "-y", help="run it without asking")] = False,
    no_run: Annotated[bool, typer.Option("--no-run", help="only write it")] = False,
    force: Annotated[bool, typer.Option("--force", help="write over a file that is there")] = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Look at pictures, propose a run for them with reasons, write it down, and run it: fedtailor start photos"""
    if yes and no_run:
        raise UserError("--yes and --no-run are given; choose one")
    if out.suffix != ".toml":
        raise UserError(f"--out {out}: fedtailor run takes a file whose name ends in .toml")
    talk = not as_json and at_a_terminal()
    if out.exists() and not force and not talk:
        raise in_the_way(out)  # before all pictures are read
    folders, said = told_apart(words or [])
    table = out.with_suffix(".csv")
    seen = look(folders, table, quiet)
    with waiting("starting", quiet):
        from ..runs.proposal import propose, this_machine
        from ..runs.proposal_file import found, to_toml
        from ..settings.keys import parse

        proposal = propose(seen, this_machine(), parse(said))
    run_it = command("run", out)
    if not as_json:
        for line in found(seen):
            say(line)
        display(reasons(proposal))
    written = write(proposal, {out: to_toml(proposal, run_it)}, table, force, talk)
    document: dict[str, Any] = {"found": seen.document(), "proposal": [vars(choice) for choice in proposal.choices]}
    document |= {"written": [str(path) for path in written], "command": run_it, "needs": proposal.lacking or None}
    if not as_json:
        say(f"written: {', '.join(map(str, written))}", "bold")
    if not_now := why_not(proposal, yes, no_run, talk):
        if as_json:
            emit({**document, "result": None})
        else:
            say(f"{not_now}: {' && '.join(filter(None, [proposal.lacking, run_it]))}")
        if yes:
            raise UserError(f"{proposal.run.backbone.name} cannot be had yet; first: {proposal.lacking}")
        return
    from ..runs import execute

    folder = new_folder(run_name(proposal.run))
    result = carry_out(partial(execute.run, proposal.run, out=folder), folder, quiet)
    if as_json:
        emit({**document, "result": result.summary})
        return
    print_result(result.summary)
    say(f"use it: {command('predict', folder, 'PICTURES')}{own_model(proposal)}")


def at_a_terminal() -> bool:
    """Whether there is somebody to ask."""
    return sys.stdin.isatty() and sys.stdout.isatty()


def told_apart(words: list[str]) -> tuple[list[Path], list[str]]:
    """Folders and settings; a folder may have an = in its name."""
    said = [word for word in words if "=" in word and not user_path(word).exists()]
    return [user_path(word) for word in words if word not in said], said


def look(folders: list[Path], table: Path, quiet: bool) -> Survey:
    """At these folders; at this one, if none is given; and if there are no pictures in it, at what is drawn."""
    from ..data import open_dataset
    from ..data.survey import Survey, has_pictures, survey
    from .progress import Progress

    if not folders and not has_pictures(Path()):
        say(
            "no folder is given, and there are no pictures in this one: figures will be drawn, to try it out",
            stderr=True,
        )
        return Survey("drawn-lt", open_dataset("drawn-lt", seed=1))
    with Progress(enabled=not quiet) as progress:
        return survey(folders or [Path()], table, progress.on_progress)


def reasons(proposal: Proposal) -> Table:
    table = Table("", "proposed", Column("why", overflow="fold"), show_edge=False)
    for choice in proposal.choices:
        table.add_row(choice.what, choice.value, choice.why)
    return table


def write(proposal: Proposal, files: dict[Path, str], table: Path, force: bool, talk: bool) -> list[Path]:
    """The TOML, and the table where there has to be one. Nothing is overwritten unless its owner agrees."""
    from ..base.files import write_atomic
    from ..data.gather import as_csv

    rows = proposal.survey.gathered.table if proposal.survey.gathered else ()
    files = {**({table: as_csv(rows)} if rows else {}), **files}
    for path in files:
        if path.exists() and not force and not (talk and agreed(f"{path} is there already; write over it?")):
            raise in_the_way(path)
    for path, text in files.items():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(path, text.encode())
        except OSError as error:
            raise UserError(f"cannot write {path}: {error.strerror}; give another --out") from error
    return list(files)


def in_the_way(path: Path) -> UserError:
    return UserError(f"{path} is there already; give another --out, or --force to write over it")


def why_not(proposal: Proposal, yes: bool, no_run: bool, talk: bool) -> str:
    """Why it is not run at once; empty: it is."""
    if proposal.lacking:
        return "to run it"
    if yes:
        return ""
    return "" if not no_run and talk and agreed("run it now?") else "run it"


def agreed(question: str) -> bool:
    try:
        return Confirm.ask(Text(visible(question)), console=Terminal(stderr=True), default=False)
    except EOFError:
        return False


def own_model(proposal: Proposal) -> str:
    sites = list(proposal.survey.sites)
    return f"  (as {sites[0]} would: {command('--client', sites[0]).removeprefix('fedtailor ')})" if sites else ""
