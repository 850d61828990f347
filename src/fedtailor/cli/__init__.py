"""The command line. Verbs import what they need when called: importing torch takes seconds."""

import logging
import sys
import warnings
from typing import Annotated, NoReturn

import click
import typer
from rich.text import Text

from ..base.errors import Note, UserError
from ..base.terminal import Terminal, visible
from ..base.version import __version__
from .arguments import ANY_OPTION
from .audit import audit
from .compare import compare
from .data import data_app
from .evaluate import evaluate
from .export import export
from .flower import flower_app
from .look import doctor, list_, show
from .output import say
from .plot import plot
from .predict import predict
from .report import report
from .reproduce import reproduce
from .run import run
from .start import start
from .stopping import REFUSED, refusal
from .ui import ui

app = typer.Typer(
    name="fedtailor",
    help="Tailor a frozen CLIP to many sites at once, without their images leaving them.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for verb in (run, start, predict, evaluate, export, compare, reproduce, plot, report, audit, ui, show, doctor):
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
    show_warning, warnings.showwarning = warnings.showwarning, tell  # type: ignore[assignment]
    if logging.lastResort:
        logging.lastResort.setFormatter(VisibleFormatter())
    try:
        raise SystemExit(app(standalone_mode=False) or 0)
    except UserError as error:
        end(str(error), error.code)
    except click.exceptions.NoArgsIsHelpError:  # which has shown it
        raise SystemExit(2) from None
    except click.ClickException as error:
        where = f" ({error.ctx.command_path} --help)" if isinstance(error, click.UsageError) and error.ctx else ""
        end(error.format_message().rstrip(".") + where)
    except OSError as error:
        if error.errno not in REFUSED:
            raise
        end(refusal(error))
    except (KeyboardInterrupt, click.Abort):
        raise SystemExit(130) from None
    finally:
        warnings.showwarning = show_warning


def end(text: str, code: int = 2) -> NoReturn:
    Terminal(stderr=True, soft_wrap=True, highlight=False).print(Text("error:", "bold red"), text)
    raise SystemExit(code) from None


def tell(message: Warning | str, category: type[Warning], filename: str, lineno: int, *_: object) -> None:
    """Warnings: ours are sentences for the user, others are for whoever mends the code that they name."""
    say(str(message) if issubclass(category, Note) else f"{filename}:{lineno}: {message}", "yellow", stderr=True)


class VisibleFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return visible(super().format(record))
