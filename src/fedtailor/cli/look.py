"""`fedtailor list`, `fedtailor show` and `fedtailor doctor`: what there is."""

from typing import Annotated

import typer

from . import catalogue
from .arguments import Json
from .output import display, emit, waiting

What = Annotated[str, typer.Argument(metavar="WHAT", help=", ".join(catalogue.KINDS))]


def list_(what: What = "methods", as_json: Json = False) -> None:
    """List methods, tuners and whatever else can be chosen."""
    with waiting("starting"):
        rows = catalogue.rows(what)
    emit(rows) if as_json else display(catalogue.table(rows))


def show(method: Annotated[str, typer.Argument(help="fedtailor list methods")], as_json: Json = False) -> None:
    """Show a method: its paper, what it shares, and all its settings with symbols, defaults and equations."""
    with waiting("starting"):
        facts = catalogue.method(method)
    emit(facts) if as_json else display(catalogue.method_page(facts))


def doctor(as_json: Json = False) -> None:
    """Look at this installation: versions, device, folders, datasets found, the bundled CLIP; exit code 1 if unfit."""
    with waiting("looking around"):
        from .installation import examine, table

        findings = examine()
    emit([vars(finding) for finding in findings]) if as_json else display(table(findings))
    if any(finding.verdict == "bad" for finding in findings):
        raise typer.Exit(1)
