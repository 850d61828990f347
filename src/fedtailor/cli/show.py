"""`fedtailor show`"""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

from .arguments import Json
from .output import emit, waiting


def show(
    method: Annotated[str, typer.Argument(help="fedtailor list methods")],
    as_json: Json = False,
) -> None:
    """Show a method: its paper, what it shares, and all its settings with symbols, defaults and equations."""
    with waiting("starting"):
        from . import catalogue
    facts = catalogue.method(method)
    emit(facts) if as_json else Console().print(catalogue.method_page(facts))
