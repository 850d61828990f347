"""The form that a run is started by: what it offers, and what comes of it."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import NamedTuple

from ..base.errors import UserError
from ..runs.places import new_folder, run_name

NAME = re.compile(r"[\w][\w.+-]*")


class Form(NamedTuple):
    """As it was filled in."""

    method: str = "capt"
    data: str = ""
    backbone: str = ""
    rounds: str = ""
    clients: str = ""
    seed: str = ""
    more: str = ""  # further settings, as on the command line
    name: str = ""  # of the run's folder

    def words(self) -> list[str]:
        """As `fedtailor run` takes them."""
        try:
            more = shlex.split(self.more, comments=True)
        except ValueError as error:
            raise UserError(f"further settings: {error}; write key=value, with quotes around spaces") from error
        keys = ("data", "backbone", "rounds", "clients", "seed")
        return [*(f"{key}={value}" for key in keys if (value := getattr(self, key).strip())), *more]


class Offer(NamedTuple):
    methods: list[tuple[str, str]]  # a name and its idea
    data: list[str]


def offer() -> Offer:
    from ..data import DATASETS
    from ..methods import METHODS  # here: it takes torch

    return Offer([(name, entry.idea) for name, entry in METHODS.items()], [*DATASETS, "folder:", "csv:"])


def check_form(form: Form, root: Path) -> tuple[Path, list[str]]:
    """The new run's folder and the words to start it by; all settings are checked before anything is started."""
    from ..runs.folder import RunFolder  # here: these take torch
    from ..settings.keys import parse
    from ..settings.run import make_run

    words = form.words()
    run = make_run(form.method, parse(words))
    if form.name and not NAME.fullmatch(form.name):
        raise UserError(f"folder {form.name!r}: letters, digits and . _ + - alone; it is made in {root}")
    folder = root / form.name if form.name else new_folder(run_name(run), root)
    RunFolder.check_free(folder)
    return folder, ["run", form.method, *words, "--out", str(folder), "--quiet"]
