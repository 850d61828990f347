"""A federation's folder on the server, and the runs that are asked for in it.

A run is asked for by a file in `server/queue/`, and gone from there when it is finished, failed or stopped. What it
writes is in `server/runs/`. So whoever looks, and whoever starts a server that was killed, sees what is left to do.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tomli_w
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.serialization import load_ssh_public_key
from filelock import FileLock, Timeout
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


@contextmanager
def alone(folder: Path, what: str) -> Iterator[None]:
    """Nobody else may work in this folder meanwhile."""
    lock = FileLock(folder / ".lock")
    try:
        lock.acquire(timeout=0)
    except Timeout as error:
        raise UserError(f"another {what} is running in {folder}") from error
    try:
        yield
    finally:
        lock.release()


def taken(folder: Path) -> bool:
    """Whether somebody works in it."""
    try:
        with alone(folder, ""):
            return False
    except UserError:
        return True


class Deployment:
    def __init__(self, folder: Path) -> None:
        self.federation = init.read(folder)
        self.root, self.folder = folder.absolute(), folder.absolute() / "server"
        for name in ("server.pem", "server.key", "ca.pem"):
            need_file(self.folder / name, "fedtailor flower init writes it; copy it there")
        self.queue, self.runs, self.flwr = (self.folder / name for name in ("queue", "runs", "flwr"))
        for made in (self.queue, self.runs, self.flwr):
            made.mkdir(exist_ok=True)

    @property
    def control(self) -> str:
        return f"127.0.0.1:{self.federation.control}"

    @property
    def certificate(self) -> bytes:
        return (self.folder / "ca.pem").read_bytes()

    def sites(self) -> dict[str, bytes]:
        """Every site's public key. Who is not here is not let in."""
        paths = sorted((self.folder / "keys").glob("client-*.pub"), key=lambda path: int(path.stem.split("-")[1]))
        if not paths:
            raise UserError(f"there are no sites' keys in {self.folder / 'keys'}; fedtailor flower add makes a site")
        keys = {path.stem: load_ssh_public_key(path.read_bytes()) for path in paths}
        return {name: public_key_to_bytes(key) for name, key in keys.items() if isinstance(key, EllipticCurvePublicKey)}

    # --- runs -------------------------------------------------------------------------------------------------------

    def waiting(self) -> list[str]:
        """The runs that are to be carried out, first come first."""
        return [path.stem for path in sorted(self.queue.glob("*.toml"), key=lambda path: path.stat().st_mtime_ns)]

    def ask(self, name: str, run: Run) -> None:
        """For a run, by the sites that there are now."""
        document = {"members": list(self.sites()), "run": run.document()}
        (self.runs / name / FAILURE).unlink(missing_ok=True)
        write_atomic(self.queue / f"{name}.toml", tomli_w.dumps(document).encode())

    def asked(self, name: str) -> tuple[Run, list[str]]:
        """A run of the queue and its members: the place of a site in this list is its client number."""
        document: dict[str, Any] = tomllib.loads((self.queue / f"{name}.toml").read_text())
        return make_run(settings=flat(document["run"])), document["members"]

    def still(self, name: str) -> bool:
        return (self.queue / f"{name}.toml").is_file()

    def done(self, name: str, failure: str = "") -> None:
        if failure:
            (self.runs / name).mkdir(exist_ok=True)
            write_atomic(self.runs / name / FAILURE, failure.encode())
        (self.queue / f"{name}.toml").unlink(missing_ok=True)
