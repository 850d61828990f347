"""Asking for a run: what is checked before it goes into the queue."""

from __future__ import annotations

import re
from collections.abc import Callable

from ..base.errors import UserError
from ..settings.keys import parse
from ..settings.run import Run, read_toml
from .deployment import Deployment

PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")  # it becomes a folder's name


def order(house: Deployment, words: list[str], name: str | None, run_of: Callable[[list[str]], Run]) -> str:
    """Check a run's settings and put it into the queue. All sites take part in each round unless told otherwise."""
    given = [word.partition("=")[0] for word in words]
    if "clients" in given or "engine" in given:
        raise UserError("clients and engine are the federation's: every site is a client, reached over Flower")
    sites = len(house.sites())
    defaults = [] if "fraction" in given else ["fraction=1.0"]
    run = run_of([*words, f"clients={sites}", "engine=flower", *defaults])
    if not run.method.value.trains:
        raise UserError(f"{run.method.name} trains nothing; there is nothing for sites to do")
    if name is not None and not PLAIN.fullmatch(name):
        raise UserError(f"a run's name has letters, digits, dots, dashes and underscores, got {name!r}")
    name = name or free_name(house, run.method.name)
    if name in taken(house):
        raise UserError(f"there is a run {name} already; go on with it by --resume {name}, or choose another --name")
    house.ask(name, run)
    return name


def resume(house: Deployment, name: str, words: list[str]) -> str:
    """Put a run back into the queue. How lost clients are dealt with may change; what decides its numbers may not."""
    toml, settings = house.runs / name / "run.toml", parse(words)
    if other := [key for key in settings if not key.startswith("plan.") or key == "plan.updates"]:
        raise UserError(f"{other[0]} cannot change in the middle of a run; with --resume only plan.* can be given")
    if name in house.waiting():
        raise UserError(f"{name} is in the queue already; fedtailor flower status tells how it goes")
    if not PLAIN.fullmatch(name) or not toml.is_file():
        known = ", ".join(sorted(path.parent.name for path in house.runs.glob("*/run.toml"))) or "none"
        raise UserError(f"there is no run {name!r} to go on with; there are: {known}")
    run = read_toml(toml, settings)
    if run.clients != len(house.sites()):
        raise UserError(f"{name} began with {run.clients} sites, and there are {len(house.sites())} now")
    house.ask(name, run)
    return name


def taken(house: Deployment) -> set[str]:
    return {*house.waiting(), *(path.name for path in house.runs.iterdir())}


def free_name(house: Deployment, method: str) -> str:
    names, n = taken(house), 1
    while f"{method}-{n}" in names:
        n += 1
    return f"{method}-{n}"
