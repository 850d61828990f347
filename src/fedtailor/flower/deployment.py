"""A deployment's folder on the server, and the runs that are asked for in it.

A run is asked for by a file in `server/queue/`, which is removed when the run is finished, failed or stopped. What the
run writes is in `server/runs/`. So whoever looks, and a server that is started again, sees what is left to do.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import tomli_w
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.serialization import load_ssh_public_key
from flwr.supercore.primitives.asymmetric import public_key_to_bytes

from ..base.errors import UserError
from ..base.files import write_atomic
from ..methods.recipe import flat
from ..settings.run import Run, make_run
from . import init

FAILURE = "failure.txt"


def need_file(path: Path, hint: str) -> Path:
    if not path.is_file():
        raise UserError(f"{path} is not there; {hint}")
    return path


class Deployment:
    def __init__(self, folder: Path) -> None:
        self.config = init.read(folder)
        self.root, self.folder = folder.absolute(), folder.absolute() / "server"
        for name in ("server.pem", "server.key", "ca.pem"):
            need_file(self.folder / name, "fedtailor flower init writes it; copy it there")
        self.queue, self.runs, self.flwr = (self.folder / name for name in ("queue", "runs", "flwr"))
        for made in (self.queue, self.runs, self.flwr):
            made.mkdir(exist_ok=True)
        self.control = f"127.0.0.1:{self.config.control}"
        self.certificate = (self.folder / "ca.pem").read_bytes()

    def sites(self) -> dict[str, bytes]:
        """Every site's public key. No other is let in."""
        paths = sorted((self.folder / "keys").glob("client-*.pub"), key=lambda path: int(path.stem.split("-")[1]))
        if not paths:
            raise UserError(f"there are no sites' keys in {self.folder / 'keys'}; fedtailor flower add makes a site")
        keys = {path.stem: load_ssh_public_key(path.read_bytes()) for path in paths}
        return {name: public_key_to_bytes(key) for name, key in keys.items() if isinstance(key, EllipticCurvePublicKey)}

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
        document: dict[str, Any] = tomllib.loads((self.queue / f"{name}.toml").read_text())
        return make_run(settings=flat(document["run"])), document["members"]

    def is_asked(self, name: str) -> bool:
        return (self.queue / f"{name}.toml").is_file()

    def done(self, name: str, failure: str = "") -> None:
        if failure:
            (self.runs / name).mkdir(exist_ok=True)
            write_atomic(self.runs / name / FAILURE, failure.encode())
        (self.queue / f"{name}.toml").unlink(missing_ok=True)
