"""Joining: the site's private key stays where it was made, what travels has no secret, and who is removed stays out."""

from __future__ import annotations

import stat
import tomllib
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from conftest import Call
from fedtailor.base.errors import UserError
from fedtailor.flower.client import SiteFolder, find_policy
from fedtailor.flower.deployment import Deployment
from fedtailor.flower.init import init, read
from fedtailor.flower.joining import accept, admit, remove, request
from fedtailor.flower.pki import certificate_fingerprint, fingerprint
from fedtailor.flower.site_keys import SiteKeys
from fedtailor.remote.policy import SitePolicy


@pytest.fixture
def fed(tmp_path: Path) -> Path:
    init(tmp_path / "fed", 0, ["fed.example.org"])
    return tmp_path / "fed"


def joined(fed: Path, home: Path, name: str) -> SiteFolder:
    request(home)
    accept(home, admit(fed, home / "client.pub", name).answer)
    return SiteFolder.open(home)


def words(answer: Any) -> str:
    """What was said, on one line."""
    return " ".join((answer.out + answer.err).split())


def test_by_its_commands(tmp_path: Path, call: Call) -> None:
    """What is read out at one end is what the other end prints."""
    assert call("flower", "init", "fed", "--clients", "0", "--host", "fed.example.org").code == 0
    asked = call("flower", "join", "--home", "site", "--name", "hospital-a")
    assert asked.code == 0, asked.err
    let_in = call("flower", "add", "fed", "--key", "site/client.pub")
    assert let_in.code == 0, let_in.err
    key = words(asked).split("read out to them: ")[1].split()[0]
    assert key == fingerprint((tmp_path / "site" / "client.pub").read_bytes())
    assert f"if its key is {key}" in words(let_in)
    done = call("flower", "join", "--home", "site", "--answer", "fed/clients/hospital-a.toml")
    assert done.code == 0, done.err
    known = words(done).split("knows its server by ")[1].split(";")[0]
    assert known == certificate_fingerprint((tmp_path / "fed" / "server" / "ca.pem").read_bytes())
    assert known in words(let_in)
    assert call("flower", "remove", "fed", "hospital-a").code == 0
    assert Deployment(tmp_path / "fed").sites() == {}


def test_the_private_key_stays_where_it_was_made(fed: Path, tmp_path: Path) -> None:
    home = tmp_path / "site"
    joined(fed, home, "north")
    key = home / "client.key"
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert stat.S_IMODE(home.stat().st_mode) == 0o700
    elsewhere = [path for path in fed.rglob("*") if path.is_file()]
    secret = key.read_bytes().splitlines()[1]
    assert not [path for path in elsewhere if secret in path.read_bytes()]
    answer = (fed / "clients" / "north.toml").read_text()
    assert "PRIVATE" not in answer
    assert set(tomllib.loads(answer)) == {"server", "name", "client", "key", "version", "ca"}


def test_what_a_site_has_then(fed: Path, tmp_path: Path) -> None:
    """All that a folder made by init has, with the policy of the site's own fedtailor; what it has changed stays."""
    init(tmp_path / "other", 1, ["fed.example.org"])
    site = joined(fed, tmp_path / "site", "north")
    ready_made = {path.name for path in (tmp_path / "other" / "clients" / "client-0").iterdir()}
    assert {path.name for path in site.folder.iterdir()} == ready_made
    assert (site.server, site.client) == ("fed.example.org:9092", 0)
    assert find_policy(site.folder) == SitePolicy()
    (site.folder / "policy.toml").write_text("rounds = 7")
    accept(site.folder, fed / "clients" / "north.toml", "10.0.0.7:443")
    assert find_policy(site.folder).rounds == 7
    assert SiteFolder.open(site.folder).server == "10.0.0.7:443"


def test_numbers_are_given_once(fed: Path, tmp_path: Path) -> None:
    assert [joined(fed, tmp_path / name, name).client for name in ("a", "b")] == [0, 1]
    remove(fed, "a")
    request(tmp_path / "c")
    assert admit(fed, tmp_path / "c" / "client.pub").name == "client-2"
    assert list(read(fed).keys) == ["b", "client-2"]
    assert list(Deployment(fed).sites()) == ["b", "client-2"]


def test_a_site_says_how_it_wants_to_be_called(fed: Path, tmp_path: Path) -> None:
    for home, name in (("a", "north"), ("b", "south"), ("c", "")):
        request(tmp_path / home, name)
    assert admit(fed, tmp_path / "a" / "client.pub").name == "north"
    assert admit(fed, tmp_path / "b" / "client.pub", "east").name == "east"
    with (tmp_path / "c" / "client.pub").open("a") as key:
        key.write("../../etc")  # no name
    assert admit(fed, tmp_path / "c" / "client.pub").name == "client-2"


def test_to_ask_again_changes_nothing(tmp_path: Path) -> None:
    assert request(tmp_path / "site") == request(tmp_path / "site")


def test_a_removed_key_stays_out(fed: Path, tmp_path: Path) -> None:
    site, keys = joined(fed, tmp_path / "site", "north"), SiteKeys(fed / "server" / "keys")
    assert list(keys()) == ["north"]
    remove(fed, "north")
    assert keys() == {}
    with pytest.raises(UserError, match=r"was removed, and a key that was removed stays out .*makes a new one"):
        admit(fed, site.folder / "client.pub", "again")
    (site.folder / "client.key").unlink()
    request(site.folder)
    assert admit(fed, site.folder / "client.pub", "north").name == "north"
    assert list(keys()) == ["north"]


def test_keys_come_and_go(fed: Path, tmp_path: Path) -> None:
    """As a running server and its gate see them; what is no key keeps nobody else out."""
    keys = SiteKeys(fed / "server" / "keys")
    assert keys() == {}
    for name in ("site-10", "site-9"):
        joined(fed, tmp_path / name, name)
    assert list(keys()) == ["site-9", "site-10"]
    assert keys() == Deployment(fed).sites()
    (fed / "server" / "keys" / "broken.pub").write_text("ssh-ed25519 AAAA")
    assert list(keys()) == ["site-9", "site-10"]
    (fed / "server" / "keys" / "site-9.pub").unlink()
    assert list(keys()) == ["site-10"]


def test_a_run_needs_a_site(fed: Path) -> None:
    with pytest.raises(UserError, match="no site may come in yet; let one in with fedtailor flower add"):
        Deployment(fed).submit(["promptfl"], None, lambda words: pytest.fail("not asked"))


def refused(case: str, fed: Path, tmp_path: Path) -> Any:
    home, key = tmp_path / "site", tmp_path / "site" / "client.pub"
    request(home)
    match case:
        case "a private key":
            return admit(fed, home / "client.key")
        case "nothing there":
            return admit(fed, tmp_path / "client.pub")
        case "another kind":
            rsa = generate_private_key(65537, 2048).public_key()
            key.write_bytes(rsa.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH))
            return admit(fed, key)
        case "no key":
            key.write_text("hello")
            return admit(fed, key)
        case "a name":
            return admit(fed, key, "../north")
        case "a name to ask with":
            return request(home, "north\nsouth")
        case "twice":
            admit(fed, key, "north")
            return admit(fed, key, "south")
        case "the name is taken":
            admit(fed, key, "north")
            request(tmp_path / "other")
            return admit(fed, tmp_path / "other" / "client.pub", "north")
        case "another's answer":
            admit(fed, key, "north")
            request(tmp_path / "other")
            return accept(tmp_path / "other", fed / "clients" / "north.toml")
        case "not asked":
            admit(fed, key, "north")
            return accept(tmp_path / "new", fed / "clients" / "north.toml")
        case "not an address":
            return accept(home, admit(fed, key, "north").answer, "https://fed.example.org")
        case "not an answer":
            return accept(home, fed / "federation.toml")
        case "not a certificate":
            answer = admit(fed, key, "north").answer
            answer.write_text(answer.read_text().replace("BEGIN CERT", "BEGIN"))
            return accept(home, answer)
        case "to remove nobody":
            return remove(fed, "nobody")
    raise AssertionError(case)


@pytest.mark.parametrize(
    ("case", "told"),
    [
        ("a private key", "is a private key, which should never leave its site"),
        ("nothing there", "is not there; give the client.pub"),
        ("another kind", "is not a key that Flower takes"),
        ("no key", "is not a public key"),
        ("a name", "letters, digits, dots, dashes and underscores, got '../north'"),
        ("a name to ask with", "letters, digits, dots, dashes and underscores"),
        ("twice", r"is let in already \(north\)"),
        ("the name is taken", "there is a site north already"),
        ("another's answer", "is for the key SHA256:.* is it another site's"),
        ("not asked", "ask first: fedtailor flower join"),
        ("not an address", "--server: .*got 'https://fed.example.org'"),
        ("not an answer", "key"),
        ("not a certificate", "is not an answer"),
        ("to remove nobody", "there is no site 'nobody'; there are: none"),
    ],
)
def test_what_is_refused(fed: Path, tmp_path: Path, case: str, told: str) -> None:
    with pytest.raises(UserError, match=told):
        refused(case, fed, tmp_path)
