"""The command line. Verbs import what they need when called: importing torch takes seconds."""

import sys
from typing import Annotated

import typer
from rich.console import Console

from ..base.errors import UserError
from ..base.version import __version__
from .arguments import ANY_OPTION
from .compare import compare
from .data import data_app
from .evaluate import evaluate
from .export import export
from .flower import flower_app
from .look import doctor, list_, show
from .plot import plot
from .predict import predict
from .report import report
from .reproduce import reproduce
from .run import run
from .start import start
from .ui import ui

app = typer.Typer(
    name="fedtailor",
    help="Tailor a frozen CLIP to many sites at once, without their images leaving them.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for verb in (run, start, predict, evaluate, export, compare, reproduce, plot, report, ui, show, doctor):
    app.command(context_settings=ANY_OPTION if verb in (run, start, compare, reproduce) else None)(verb)
app.command("list")(list_)
app.add_typer(data_app, name="data")
app.add_typer(flower_app, name="flower")


@app.callback(invoke_without_command=True)
def root(version: Annotated[bool, typer.Option("--version", help="print the version")] = False) -> None:
    if version:
        sys.stdout.write(f"fedtailor {__version__}\n")
        raise typer.Exit


def main() -> None:
    try:
        app(standalone_mode=True)
    except UserError as error:
        console = Console(emoji=False, stderr=True, soft_wrap=True, highlight=False)
        console.print("[bold red]error:[/]", end=" ")
        console.print(str(error), markup=False)
        raise SystemExit(error.code) from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None
