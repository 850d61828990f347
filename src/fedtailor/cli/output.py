"""What verbs write to the terminal."""

import json
import sys
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from rich.console import Group, RenderableType
from rich.measure import Measurement
from rich.table import Table

from ..base.sizes import size
from ..base.terminal import Terminal, visible, visible_json

NO_LIMIT = 100_000  # columns


def waiting(what: str, quiet: bool = False) -> AbstractContextManager[object]:
    """A spinner, while torch is imported or a dataset opened."""
    console = Terminal(stderr=True)
    return console.status(what) if console.is_terminal and not quiet else nullcontext()


def say(text: str, style: str = "", stderr: bool = False) -> None:
    """A line as it is, however long: what is in it may be copied."""
    Terminal(stderr).print(text, style=style or None, highlight=False, soft_wrap=True)


def display(what: RenderableType) -> None:
    """Tables and pages. Sentences are wrapped; words, which may be keys or paths, stay whole, and are folded only on a
    terminal that is too narrow for them. Nothing is cut."""
    console = Terminal()
    keep_words(what, True)
    least = Measurement.get(console, console.options.update(max_width=NO_LIMIT), what).minimum
    if least > console.width:
        keep_words(what, not console.is_terminal)
        console.width = console.width if console.is_terminal else least
    console.print(what)


def keep_words(what: RenderableType, whole: bool) -> None:
    """In columns of single words. rich would narrow them as it does others, and end them with an ellipsis."""
    if isinstance(what, Group):
        for part in what.renderables:
            keep_words(part, whole)
    elif isinstance(what, Table):
        for column in what.columns:
            column.overflow = "fold"
            column.no_wrap = whole and not any(" " in str(cell) for cell in column.cells)


def emit(value: Any) -> None:
    sys.stdout.write(visible_json(json.dumps(value, indent=1, ensure_ascii=False)) + "\n")


def write(text: str) -> None:
    """A table in another program's format; whoever looks at it does so on a terminal too."""
    sys.stdout.write(visible(text))


def print_result(s: dict[str, Any], leak: bool = False, validation: float = 0.0) -> None:
    from ..report.notes import notes
    from ..report.tables import heading, privacy_line, pseudo_line, result_table

    say(heading(s), "italic")
    display(result_table(s))
    if s["pseudo_labels"]:
        say(pseudo_line(s["labels"], s["pseudo_labels"]))
    if s["privacy"]:
        say(privacy_line(s["privacy"], s["rounds"]))
    if s["backdoor"] is not None:
        say(f"backdoor: {s['backdoor']:.1f}% of marked pictures of other classes are called the target")
    for note in notes(s, leak, validation):
        say(note, "yellow")
    say(
        f"{s['rounds']} rounds in {s['seconds']:.0f} s ({s['engine']}, {s['threads']} threads) · "
        f"up {size(s['bytes_up'])}, down {size(s['bytes_down'])} · "
        f"peak memory {s['peak_rss_mb']:.0f} MB · {s['run_dir']}"
    )
