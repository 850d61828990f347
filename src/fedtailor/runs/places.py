"""Where a run goes if nobody says where."""

from itertools import count
from pathlib import Path
from typing import Any


def new_folder(name: str, root: Path = Path("runs")) -> Path:
    """runs/NAME, or runs/NAME-2 and so on if that is taken."""
    numbered = (root / (name if n == 1 else f"{name}-{n}") for n in count(1))
    return next(folder for folder in numbered if not folder.exists())


def run_name(run: Any) -> str:
    return f"{run.method.name}-{data_word(run)}-s{run.seed}"


def data_word(run: Any) -> str:
    """A run's data, as part of a folder's name."""
    form, colon, path = run.data.name.partition(":")
    return f"{form}-{Path(path).resolve().stem}" if colon else form
