"""A run as words: what follows `fedtailor run`, and what a Flower App has under `settings`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ..base.errors import UserError

if TYPE_CHECKING:
    from .run import Run  # with torch, which is imported once there is a run to make


def run_of(words: list[str], seed: int | None = None) -> Run:
    """The run that a command line describes: a method or a run.toml, if any, then settings."""
    from .keys import parse
    from .run import make_run, read_toml

    method = words[0] if words and "=" not in words[0] else None
    settings = parse(words[1:] if method else words)
    if seed is not None:
        if "seed" in settings:
            raise UserError("seed is given twice, as seed= and as --seed")
        settings["seed"] = seed
    return read_toml(Path(method), settings) if method and method.endswith(".toml") else make_run(method, settings)
