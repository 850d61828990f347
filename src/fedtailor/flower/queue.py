"""Asking for a run: what is checked before it goes into the queue."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import count

from ..base.errors import UserError
from ..settings.keys import parse
from ..settings.run import Run, read_toml
from .deployment import Deployment

PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")  # it becomes a folder's name


def submit(deployment: Deployment, words: list[str], name: str | None, run_of: Callable[[list[str]], Run]) -> str:
    """Check a run's settings and put it into the queue. All sites take part in each round unless told otherwise."""
    given = [word.partition("=")[0] for word in words]
    if "clients" in given or "engine" in given:
        raise UserError("clients and engine are the federation's: every site is a client, reached over Flower")
    defaults = [] if "fraction" in given else ["fraction=1.0"]
    run = run_of([*words, f"clients={len(deployment.sites())}", "engine=flower", *defaults])
    if not run.method.value.trains:
        raise UserError(f"{run.method.name} trains nothing; there is nothing for sites to do")
    if name is not None and not PLAIN.fullmatch(name):
        raise UserError(f"a run's name has letters, digits, dots, dashes and underscores, got {name!r}")
    taken, numbered = deployment.run_names(), (f"{run.method.name}-{n}" for n in count(1))
    if name in taken:
        raise UserError(f"there is a run {name} already; go on with it by --resume {name}, or choose another --name")
    name = name or next(free for free in numbered if free not in taken)
    deployment.ask(name, run)
    return name


def resume(deployment: Deployment, name: str, words: list[str]) -> str:
    """Put a run back into the queue. How lost clients are dealt with may change; what decides its numbers may not."""
    toml, settings = deployment.runs / name / "run.toml", parse(words)
    if other := [key for key in settings if not key.startswith("plan.") or key == "plan.updates"]:
        raise UserError(f"{other[0]} cannot change in the middle of a run; with --resume only plan.* can be given")
    if name in deployment.waiting():
        raise UserError(f"{name} is in the queue already; fedtailor flower status tells how it goes")
    if not PLAIN.fullmatch(name) or not toml.is_file():
        known = ", ".join(sorted(path.parent.name for path in deployment.runs.glob("*/run.toml"))) or "none"
        raise UserError(f"there is no run {name!r} to go on with; there are: {known}")
    run, sites = read_toml(toml, settings), len(deployment.sites())
    if run.clients != sites:
        raise UserError(f"{name} began with {run.clients} sites, and there are {sites} now")
    deployment.ask(name, run)
    return name
