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
    """JSON on stdout."""
    sys.stdout.write(json.dumps(value, indent=1, ensure_ascii=False) + "\n")
