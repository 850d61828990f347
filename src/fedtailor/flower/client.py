"""`fedtailor flower client`: one site. A SuperNode carries messages; this process replies and keeps CLIP loaded."""

from __future__ import annotations

import logging
import math
import secrets
import socket
import tomllib
from dataclasses import dataclass
from pathlib import Path

from flwr.clientapp import ClientApp

from ..base.errors import UserError
from ..base.files import FolderLock, write_atomic
from ..data import FORMS
from ..remote.client import RemoteClient, Session
from ..remote.messages import Invitation
from ..remote.policy import SitePolicy, read_policy
from ..settings.run import Run
from . import pki
from .init import POLICY, need_file
from .link import Link
from .messages import client_app
from .own_pictures import look_over
from .process import ALIVE, ManagedProcess, until_signal
from .sites import site_session
from .worker import CLIENT_APP, Runtime, serve

log = logging.getLogger("fedtailor.flower")


@dataclass(frozen=True)
class SiteFolder:
    folder: Path
    server: str
    client: int

    @property
    def known_as(self) -> str:
        """The server, for the site's log: its address, and the certificate that the site knows it by."""
        return f"{self.server}, certified by {pki.certificate_fingerprint((self.folder / 'ca.pem').read_bytes())}"

    @classmethod
    def open(cls, folder: Path, client: int | None = None) -> SiteFolder:
        """From the site's own folder, or from the deployment's and the site's number."""
        if client is not None and not (folder / "site.toml").is_file():
            folder = folder / "clients" / f"client-{client}"
        hint = (
            "give the site's folder with --home, as fedtailor flower join made it, or the federation's and --client N"
        )
        try:
            facts = tomllib.loads(need_file(folder / "site.toml", hint).read_text())
            home = cls(folder.absolute(), str(facts["server"]), int(facts["client"]))
        except (tomllib.TOMLDecodeError, KeyError, ValueError) as error:
            raise UserError(f"{folder / 'site.toml'} is not readable: {error}") from error
        if client not in (None, home.client):
            raise UserError(f"{folder} is the folder of client {home.client}, not {client}")
        for name in ("client.key", "ca.pem"):
            need_file(home.folder / name, "fedtailor flower init writes it; copy it here")
        return home


def find_policy(home: Path, given: Path | None = None) -> SitePolicy:
    """The file that is given, else the one in the site's folder; where there is none, the defaults hold."""
    path = home / POLICY if given is None else given
    if given is None and not path.is_file():
        log.warning("there is no %s: this site keeps to the default policy", path)
        return SitePolicy()
    log.info("policy: %s", path)
    return read_policy(path)


def open_site(
    home: Path, policy: SitePolicy, data: str, backbone: str = "", device: str = "", *, server: str
) -> RemoteClient:
    def make_session(invitation: Invitation, run: Run) -> Session:
        return site_session(invitation, run, policy, data, backbone, device)

    key = pki.read_key(home / "client.key")
    return RemoteClient(home / "state", make_session, policy, server, key, home / "models")


def run_client(home: SiteFolder, data: str, backbone: str = "", device: str = "", policy: Path | None = None) -> None:
    """Serve until a signal ends it. Whatever ends it, what it keeps is on disk by then."""
    form, _, path = data.partition(":")
    if form in FORMS and not Path(path).exists():
        raise UserError(f"there are no images at {path}; give this site's folder with --data")
    allowed = find_policy(home.folder, policy)
    site = open_site(home.folder, allowed, data, backbone, device, server=home.known_as)
    look_over(data, home.folder / "state")
    most = allowed.megabytes_in * 1e6
    serve_site(home, client_app(lambda kind, data, context: site.handle(data), most), most)


def serve_site(home: SiteFolder, app: ClientApp, most: float = math.inf) -> None:
    """`most`: bytes of a message. What has more is refused, and of what has twice as much the rest is not fetched."""
    over = until_signal()
    flwr, secret = home.folder / "flwr", secrets.token_hex(32).encode()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))  # any that is free
        port = probe.getsockname()[1]
    words = [
        *("--superlink", home.server, "--root-certificates", str(home.folder / "ca.pem")),
        *("--auth-supernode-private-key", str(home.folder / "client.key")),
        *("--isolation", "process", "--host", "127.0.0.1", "--port", str(port)),
        *("--superexec-auth-secret-file", str(flwr / "secret")),
    ]
    with FolderLock(home.folder, "client"):
        flwr.mkdir(mode=0o700, exist_ok=True)
        write_atomic(flwr / "secret", secret, private=True)
        log.info("this is client %d of the federation; its logs are in %s", home.client, home.folder / "log")
        limit, told = [str(2 * most)], home.folder / "log" / "supernode.log"
        with (
            Link(home.server, home.folder / "ca.pem", flwr / ALIVE),
            ManagedProcess("fedtailor.flower.supernode", [*limit, *words], told, flwr),
        ):
            serve(Runtime(f"127.0.0.1:{port}", secret, None, CLIENT_APP), app, over)
    over.end()
