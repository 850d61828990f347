"""A new deployment's folder, with a part for the server and a part for each site.

federation.toml   hosts, ports, number of sites, fingerprints of their keys
ca/               the key that certifies the server; kept offline
server/           certificate and key of the server, public keys of the sites
clients/client-0/ what one site gets, and nothing else
app/              the Flower app, which only names fedtailor.flower.app
"""

import tomllib
from collections.abc import Mapping, Sequence
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from string import Template
from typing import Annotated, Self

import tomli_w
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import SECP384R1, EllipticCurvePrivateKey, generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, PrivateFormat, PublicFormat, load_pem_private_key
from pydantic import BaseModel, ConfigDict, Field, model_validator

from ..base.errors import UserError
from ..base.files import write_atomic
from ..base.version import __version__
from ..settings.keys import checked
from . import pki
from .app_folder import write_app

POLICY = "policy.toml"  # of a site
TEMPLATES = files(__package__) / "templates"
Port = Annotated[int, Field(ge=1, le=65535)]


class DeploymentConfig(BaseModel):  # federation.toml
    model_config = ConfigDict(frozen=True, extra="forbid")
    version: str = __version__
    hosts: tuple[str, ...]  # the sites use the first
    port: Port  # where the sites come in
    control: Port  # where runs are started and stopped, on the server's machine only
    clients: int = Field(ge=0)  # how many numbers were given out; none is given twice
    keys: dict[str, str] = {}  # site → fingerprint

    @model_validator(mode="after")
    def hosts_and_ports(self) -> Self:
        if not self.hosts:
            raise UserError("no host; give the name that the sites reach the server by, such as --host fed.example.org")
        for host in self.hosts:
            pki.alternative(host)
        if self.control == self.port:
            raise UserError(f"the sites' port and the control port are both {self.port}; choose two")
        return self

    @property
    def words(self) -> dict[str, object]:
        """For what is handed out."""
        capabilities = "CAP_NET_BIND_SERVICE" if self.port < 1024 else ""  # else systemd grants nothing
        return {**self.model_dump(), "address": self.address, "capabilities": capabilities}

    @property
    def address(self) -> str:
        host = self.hosts[0]
        return f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}"


def init(folder: Path, clients: int, hosts: Sequence[str], port: int = 9092, control: int = 9093) -> None:
    given = {"hosts": hosts, "port": port, "control": control, "clients": clients}
    config = checked(DeploymentConfig, given, "")
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot make the folder {folder}: {error.strerror}; choose another") from error
    if any(folder.iterdir()):
        hint = "add a site to it with fedtailor flower add, or " if (folder / "federation.toml").exists() else ""
        raise UserError(f"{folder} is not empty; {hint}choose another folder")
    ca = pki.make_ca(f"fedtailor CA of {config.hosts[0]}")
    put(folder / "ca" / "ca.key", pki.private_bytes(ca.key), private=True)
    put(folder / "server" / "ca.pem", ca.pem)
    certify(folder, ca, config)
    fill(folder, TEMPLATES / "deployment", config.words)
    write_app(folder / "app")
    keys = {f"client-{k}": make_site(folder, config, k) for k in range(clients)}
    save(folder, config.model_copy(update={"keys": keys}))


def add_client(folder: Path) -> int:
    """Make the part of one more site; returns its number."""
    config = read(folder)
    keys = {**config.keys, f"client-{config.clients}": make_site(folder, config, config.clients)}
    save(folder, config.model_copy(update={"clients": config.clients + 1, "keys": keys}))
    return config.clients


def renew(folder: Path) -> None:
    """Make a new key and certificate for the server, under the hosts that federation.toml has now."""
    hint = "put it back from where it is kept, and take it away again afterwards"
    config, path = read(folder), need_file(folder / "ca" / "ca.key", hint)
    certificate = x509.load_pem_x509_certificate((folder / "server" / "ca.pem").read_bytes())
    try:
        key = load_pem_private_key(path.read_bytes(), password=None)
    except ValueError as error:
        raise UserError(f"{path} is not a key: {error}; put the one back that init wrote") from error
    if not isinstance(key, EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
        raise UserError(f"{path} is the key of another federation; put this one's own there")
    certify(folder, pki.Certified(key, certificate), config)


def read(folder: Path) -> DeploymentConfig:
    path = folder / "federation.toml"
    if not path.is_file():
        raise UserError(f"{folder} is no federation: it has no federation.toml; make one with fedtailor flower init")
    try:
        return checked(DeploymentConfig, tomllib.loads(path.read_text()), f"{path}: ")
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{path} is not readable: {error}") from error


def save(folder: Path, config: DeploymentConfig) -> None:
    head = (TEMPLATES / "federation.toml").read_text("utf-8")
    put(folder / "federation.toml", (head + tomli_w.dumps(config.model_dump())).encode())


def certify(folder: Path, ca: pki.Certified, config: DeploymentConfig) -> None:
    server = pki.make_server_certificate(ca, config.hosts)
    put(folder / "server" / "server.key", pki.private_bytes(server.key), private=True)
    put(folder / "server" / "server.pem", server.pem)


def make_site(folder: Path, config: DeploymentConfig, number: int) -> str:
    """Write what one site gets, and its public key for the server; returns the key's fingerprint."""
    home = folder / "clients" / f"client-{number}"
    if home.exists():
        raise UserError(f"{home} exists, but federation.toml knows no client {number}; take it away first")
    public = make_key(home, f"client-{number}")
    furnish(home, config.address, number, (folder / "server" / "ca.pem").read_bytes())
    put(folder / "server" / "keys" / f"client-{number}.pub", public)
    return pki.fingerprint(public)


def make_key(home: Path, name: str) -> bytes:
    """A new key of a site, in its folder; returns the public half."""
    key = generate_private_key(SECP384R1())  # the curve that Flower itself makes keys on
    public = (
        key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH) + f" {name}".rstrip().encode() + b"\n"
    )
    put(home / "client.key", pki.private_bytes(key, PrivateFormat.OpenSSH), private=True)
    put(home / "client.pub", public)
    return public


def furnish(home: Path, server: str, number: int, ca: bytes) -> None:
    """All that a site needs beside its key. What is the site's own to change stays as it is."""
    put(home / "ca.pem", ca)
    put(home / "site.toml", tomli_w.dumps({"server": server, "client": number}).encode())
    fill(home, TEMPLATES / "client", {"version": __version__, "address": server, "number": number}, keep=True)


def fill(folder: Path, template: Traversable, values: Mapping[str, object], keep: bool = False) -> None:
    """Copy a folder of templates, with these values in place of $names; `keep` those files that are there."""
    for item in template.iterdir():
        path = folder / item.name.removesuffix(".template")
        if item.is_dir():
            fill(path, item, values, keep)
        elif not (keep and path.exists()):
            put(path, Template(item.read_text("utf-8")).substitute(values).encode())


def need_file(path: Path, hint: str) -> Path:
    if not path.is_file():
        raise UserError(f"{path} is not there; {hint}")
    return path


def put(path: Path, data: bytes, private: bool = False) -> None:
    """In a folder of the owner's alone."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_atomic(path, data, private)
