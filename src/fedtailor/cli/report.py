"""`fedtailor report`"""

from pathlib import Path
from typing import Annotated

import typer

from ..base.errors import UserError
from .output import say, waiting


def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="run folders, or a comparison's")],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE", help="default: report.html in the folder, or here")
    ] = None,
    pictures: Annotated[
        bool, typer.Option("--pictures", help="with the worst cases as small pictures, of data on this machine")
    ] = False,
) -> None:
    """Make one page of a run, or of several, that needs nothing else: fedtailor report runs/mine -o page.html"""
    from ..base.files import write_atomic

    path = out or (runs[0] / "report.html" if len(runs) == 1 else Path("report.html"))
    if path.suffix not in (".html", ".htm"):
        raise UserError(f"{path} does not end in .html; --out takes a page")
    with waiting("reading"):
        from ..report.page import render
        from ..runs.page import read_page
        from .progress import Late

    with Late(enabled=True) as progress:
        text = render(read_page(runs, pictures, progress.on_progress))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, text.encode())
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}; choose another --out") from error
    say(str(path))
