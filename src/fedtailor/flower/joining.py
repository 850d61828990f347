"""How a site comes into a federation, and how it is put out of it. Its private key is made there and never travels.

at the site     request   client.key, and client.pub, which goes to whoever runs the server
on the server   admit     server/keys/NAME.pub, and an answer, which goes back: nothing in it is secret
at the site     accept    who the server is, and all else that a site's folder has
on the server   remove    the key goes to server/keys/removed, and is never let in again
"""

import hashlib
import tomllib
from pathlib import Path
from typing import NamedTuple

import tomli_w
from cryptography.x509 import load_pem_x509_certificate
from pydantic import BaseModel, ConfigDict, Field

from ..base.errors import UserError
from ..base.version import __version__
from ..settings.keys import checked
from . import pki
from .deployment import PLAIN
from .init import furnish, make_key, need_file, put, read, save
from .site_keys import read_key


class Answer(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")
    server: str = Field(pattern=r"^[^\s]+:\d+$")
    name: str
    client: int = Field(ge=0)
    key: str  # fingerprint of the site's
    version: str
    ca: str  # a certificate


class Admitted(NamedTuple):
    name: str
    answer: Path
    key: str  # its fingerprint, and that of the certificate that vouches for the server
    ca: str


def request(home: Path, name: str = "") -> str:
    """Make the site's key, unless it has one. Returns the key's fingerprint."""
    if name:
        check_name(name)
    if (home / "client.key").exists():
        public = need_file(home / "client.pub", "it belongs to client.key; take that away to begin anew").read_bytes()
        return pki.fingerprint(public)
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        return pki.fingerprint(make_key(home, name))
    except OSError as error:
        raise UserError(f"cannot write to {home}: {error.strerror}; choose another --home") from error


def admit(folder: Path, key: Path, name: str = "") -> Admitted:
    config, keys = read(folder), folder / "server" / "keys"
    public, wanted = key_line(key)
    name = check_name(name or wanted or f"client-{config.clients}")
    if name in config.keys or (keys / f"{name}.pub").exists():
        raise UserError(f"there is a site {name} already; choose another --name, or remove that one first")
    for path in sorted(keys.rglob("*.pub")):
        if pki.fingerprint(path.read_bytes()) == pki.fingerprint(public):
            known = "was removed, and a key that was removed stays out" if path.parent != keys else "is let in already"
            raise UserError(f"the key in {key} {known} ({path.stem}); the site makes a new one: fedtailor flower join")
    ca, fingerprint = (folder / "server" / "ca.pem").read_bytes(), pki.fingerprint(public)
    answer = Answer(
        server=config.address, name=name, client=config.clients, key=fingerprint, version=__version__, ca=ca.decode()
    )
    at = folder / "clients" / f"{name}.toml"
    put(at, tomli_w.dumps(answer.model_dump(), multiline_strings=True).encode())
    more = {"clients": config.clients + 1, "keys": {**config.keys, name: fingerprint}}
    save(folder, config.model_copy(update=more))
    put(keys / f"{name}.pub", public)
    return Admitted(name, at, fingerprint, pki.certificate_fingerprint(ca))


def accept(home: Path, answer: Path, server: str = "") -> str:
    """Take the server's answer. Returns the fingerprint of the certificate that the site will know the server by."""
    given = read_answer(answer)
    mine = pki.fingerprint(need_file(home / "client.pub", "ask first: fedtailor flower join --home HOME").read_bytes())
    if given.key != mine:
        raise UserError(f"{answer} is for the key {given.key}, and the one in {home} is {mine}; is it another site's?")
    if server:
        given = checked(Answer, {**given.model_dump(), "server": server}, "--")
    furnish(home, given.server, given.client, given.ca.encode())
    return pki.certificate_fingerprint(given.ca.encode())


def remove(folder: Path, name: str) -> None:
    """From now on its key is let in no more."""
    config, keys = read(folder), folder / "server" / "keys"
    path = keys / f"{check_name(name)}.pub"
    if name not in config.keys and not path.is_file():
        raise UserError(f"there is no site {name!r}; there are: {', '.join(config.keys) or 'none'}")
    if path.is_file():
        digest = hashlib.sha256(public := path.read_bytes()).hexdigest()[:12]
        put(keys / "removed" / f"{name}-{digest}.pub", public)
        path.unlink()
    save(folder, config.model_copy(update={"keys": {site: key for site, key in config.keys.items() if site != name}}))


def check_name(name: str) -> str:
    if not PLAIN.fullmatch(name):
        raise UserError(f"a site's name has letters, digits, dots, dashes and underscores, got {name!r}")
    return name


def key_line(path: Path) -> tuple[bytes, str]:
    """A public key as it is kept: checked, in one line, and nothing else; and the name that it has in the file."""
    if b"PRIVATE" in need_file(path, "give the client.pub that fedtailor flower join made at the site").read_bytes():
        raise UserError(f"{path} is a private key, which should never leave its site; ask for client.pub")
    read_key(path)
    form, key, *rest = path.read_bytes().split()
    wanted = rest[0].decode(errors="replace") if rest else ""
    return form + b" " + key + b"\n", wanted if PLAIN.fullmatch(wanted) else ""


def read_answer(path: Path) -> Answer:
    try:
        answer = checked(Answer, tomllib.loads(path.read_text("utf-8")), f"{path}: ")
        load_pem_x509_certificate(answer.ca.encode())
    except (OSError, ValueError) as error:  # TOML's, too
        raise UserError(f"{path} is not an answer: {error}; fedtailor flower add --key writes one") from error
    return answer
