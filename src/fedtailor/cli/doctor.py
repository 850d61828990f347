"""`fedtailor doctor`"""

from __future__ import annotations

import typer
from rich.console import Console

from .arguments import Json
from .output import emit, waiting


def doctor(as_json: Json = False) -> None:
    """Look at this installation: versions, device, folders, datasets found, the bundled CLIP; exit code 1 if unfit."""
    with waiting("looking around"):
        from .installation import examine, table

        findings = examine()
    if as_json:
        emit([vars(finding) for finding in findings])
    else:
        Console().print(table(findings))
    if any(finding.verdict == "bad" for finding in findings):
        raise typer.Exit(1)
