"""`fedtailor list`"""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

from .arguments import Json
from .output import emit, waiting


def list_(
    what: Annotated[
        str,
        typer.Argument(
            metavar="WHAT",
            help="methods, tuners, labelers, rebalancers, servers, datasets, partitions, backbones, engines, "
            "diagnostics",
        ),
    ] = "methods",
    as_json: Json = False,
) -> None:
    """List methods, tuners and whatever else can be chosen."""
    with waiting("starting"):
        from . import catalogue
    rows = catalogue.rows(what)
    emit(rows) if as_json else Console().print(catalogue.table(rows))
