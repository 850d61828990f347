"""What verbs write to the terminal."""

import json
import sys
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from rich.console import Console


def waiting(what: str, quiet: bool = False) -> AbstractContextManager[object]:
    """A spinner, while torch is imported or a dataset opened."""
    console = Console(stderr=True)
    return console.status(what) if console.is_terminal and not quiet else nullcontext()


def emit(value: Any) -> None:
    sys.stdout.write(json.dumps(value, indent=1, ensure_ascii=False) + "\n")


def print_result(s: dict[str, Any], leak: bool = False, validation: float = 0.0) -> None:
    from ..report.tables import pseudo_line, result_table, size

    console = Console()
    console.print(result_table(s))
    if s["pseudo_labels"]:
        console.print(pseudo_line(s["labels"], s["pseudo_labels"]), highlight=False)
    for note in s.get("notes", []):
        console.print(note, style="yellow", markup=False, highlight=False)
    if absent := s.get("never_took_part"):
        which = ", ".join(map(str, absent[:10])) + (", …" if len(absent) > 10 else "")
        told = f"{len(absent)} client(s) never took part ({which}); more rounds or a larger fraction reach them"
        console.print(told, style="yellow", highlight=False)
    if leak:
        console.print("the server had the test set to validate on (data.server=test): no fair result", style="yellow")
    if validation:
        told = (
            f"tested on validation pictures, {validation:g} of the training set (data.validation), not on the test set"
        )
        console.print(told, style="yellow", highlight=False)
    console.print(
        f"{s['rounds']} rounds in {s['seconds']:.0f} s ({s['engine']}, {s['threads']} threads) · "
        f"up {size(s['bytes_up'])}, down {size(s['bytes_down'])} · "
        f"peak memory {s['peak_rss_mb']:.0f} MB · [bold]{s['run_dir']}[/]",
        highlight=False,
    )
