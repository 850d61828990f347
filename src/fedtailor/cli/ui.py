"""`fedtailor ui`"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..base.errors import UserError
from .output import say, waiting
from .stopping import command

if TYPE_CHECKING:
    from ..ui.children import Child


def ui(
    folder: Annotated[Path, typer.Argument(help="where runs are, and where new ones go")] = Path("runs"),
    port: Annotated[int, typer.Option(min=0, max=65535, help="to listen on; 0: any that is free")] = 0,
    no_browser: Annotated[bool, typer.Option("--no-browser", help="only print the address")] = False,
) -> None:
    """Watch, compare and start runs in a browser, and show pictures to tuned models; for this machine alone."""
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file; name the folder that runs are in")
    with waiting("starting"):
        try:
            from ..ui.server import serve
        except ImportError as error:
            raise UserError(f"fedtailor ui needs {error.name}; pip install 'fedtailor[ui]'") from error

    def tell(address: str) -> None:
        say(f"{address}\nCtrl-C ends it, and stops runs that were started from it; they can be resumed.")
        if not no_browser:
            typer.launch(address)

    def ended(child: Child) -> None:
        say(f"stopped {child.folder}; go on with: {command('run', '--resume', child.folder)}")

    serve(folder, port, tell, ended)
