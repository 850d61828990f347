"""A deployment's folder on the server, and the runs that are asked for in it.

A run is asked for by a file in `server/queue/`, which is removed when the run is over; what it writes is in
`server/runs/`. So whoever looks, and a server that is started again, sees what is left to do.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import tomli_w

from ..base.errors import UserError
from ..base.files import write_atomic
from ..base.keys import flat
from ..settings.keys import parse
from . import init
from .site_keys import SiteKeys

if TYPE_CHECKING:
    from ..settings.run import Run  # with torch, which who only looks or stops can do without

FAILURE = "failure.txt"
MEMBERS = "members.json"  # remote/members.py
PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")  # a run's name, which becomes a folder's


class Deployment:
    def __init__(self, folder: Path) -> None:
        self.config = init.read(folder)
        self.root, self.folder = folder.absolute(), folder.absolute() / "server"
        for name in ("server.pem", "server.key", "ca.pem"):
            init.need_file(self.folder / name, "fedtailor flower init writes it; copy it there")
        self.queue, self.runs, self.flwr = (self.folder / name for name in ("queue", "runs", "flwr"))
        for made in (self.queue, self.runs, self.flwr):
            made.mkdir(exist_ok=True)
        self.control = f"127.0.0.1:{self.config.control}"
        self.token = self.flwr / "token"  # opens the control port
        self.certificate = (self.folder / "ca.pem").read_bytes()
        self.sites = SiteKeys(self.folder / "keys")  # no other is let in

    def waiting(self) -> list[str]:
        """The runs to be carried out, in the order in which they were asked for."""
        return [path.stem for path in sorted(self.queue.glob("*.toml"), key=lambda path: path.stat().st_mtime_ns)]

    def run_names(self) -> set[str]:
        return {*self.waiting(), *(path.name for path in self.runs.iterdir())}

    def ask(self, name: str, run: Run) -> None:
        """Ask for a run on the sites that there are now."""
        document = {"members": list(self.sites()), "run": run.document()}
        (self.runs / name / FAILURE).unlink(missing_ok=True)
        write_atomic(self.queue / f"{name}.toml", tomli_w.dumps(document).encode())

    def asked(self, name: str) -> tuple[Run, list[str]]:
        """A run of the queue and its members: the place of a site in this list is its client number."""
        from ..settings.run import make_run

        document = tomllib.loads((self.queue / f"{name}.toml").read_text())
        return make_run(settings=flat(document["run"])), document["members"]

    def is_asked(self, name: str) -> bool:
        return (self.queue / f"{name}.toml").is_file()

    def done(self, name: str, failure: str = "") -> None:
        if failure:
            (self.runs / name).mkdir(exist_ok=True)
            write_atomic(self.runs / name / FAILURE, failure.encode())
        (self.queue / f"{name}.toml").unlink(missing_ok=True)

    def submit(self, words: list[str], name: str | None, run_of: Callable[[list[str]], Run]) -> str:
        """Check a run's settings and put it into the queue. All sites take part in each round unless told otherwise."""
        given = [word.partition("=")[0] for word in words]
        if "clients" in given or "engine" in given:
            raise UserError("clients and engine are the federation's: every site is a client, reached over Flower")
        if not self.sites():
            raise UserError("no site may come in yet; let one in with fedtailor flower add")
        defaults = [] if "fraction" in given else ["fraction=1.0"]
        run = run_of([*words, f"clients={len(self.sites())}", "engine=flower", *defaults])
        if not run.method.value.trains:
            raise UserError(f"{run.method.name} trains nothing; there is nothing for sites to do")
        if name is not None and not PLAIN.fullmatch(name):
            raise UserError(f"a run's name has letters, digits, dots, dashes and underscores, got {name!r}")
        taken, numbered = self.run_names(), (f"{run.method.name}-{n}" for n in count(1))
        if name in taken:
            raise UserError(f"there is a run {name} already; go on with --resume {name}, or choose another --name")
        name = name or next(free for free in numbered if free not in taken)
        self.ask(name, run)
        return name

    def resume(self, name: str, words: list[str]) -> str:
        """Put a run back into the queue. What decides its numbers cannot change meanwhile."""
        from ..runs.folder import check_version
        from ..settings.run import read_toml

        toml, settings = self.runs / name / "run.toml", parse(words)
        if other := [key for key in settings if not key.startswith("plan.") or key == "plan.updates"]:
            raise UserError(f"{other[0]} cannot change in the middle of a run; with --resume only plan.* can be given")
        if name in self.waiting():
            raise UserError(f"{name} is in the queue already; fedtailor flower status tells how it goes")
        if not PLAIN.fullmatch(name) or not toml.is_file():
            known = ", ".join(sorted(path.parent.name for path in self.runs.glob("*/run.toml"))) or "none"
            raise UserError(f"there is no run {name!r} to go on with; there are: {known}")
        check_version(toml.parent)
        run, sites = read_toml(toml, settings), len(self.sites())
        if run.clients != sites and not (toml.parent / MEMBERS).is_file():  # which says who was there
            raise UserError(f"{name} began with {run.clients} sites, and there are {sites} now")
        self.ask(name, run)
        return name
