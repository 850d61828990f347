"""A new federation's folder: who gets what, whom its certificates convince, and what Flower makes of it."""

from __future__ import annotations

import argparse
import os
import shutil
import ssl
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Callable
from configparser import ConfigParser
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

import yaml
from cryptography import x509

from fedtailor import __version__
from fedtailor.base.errors import UserError
from fedtailor.base.files import write_atomic
from fedtailor.flower import pki
from fedtailor.flower.app import CONFIG
from fedtailor.flower.init import add_client, init, read, renew

HOSTS = ("fed.example.org", "192.0.2.7", "2001:db8::7")
SITE = {
    "README.md",
    "ca.pem",
    "client.key",
    "client.pub",
    "compose.yaml",
    "fedtailor-client.service",
    "policy.toml",
    "site.toml",
}
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A federation of three, made while files are open to all unless something forbids it."""
    folder = tmp_path_factory.mktemp("federations") / "made"
    before = os.umask(0)
    try:
        init(folder, clients=3, hosts=HOSTS, port=9192, control=9193)
    finally:
        os.umask(before)
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    """A copy, to be changed."""
    return Path(shutil.copytree(made, tmp_path / "federation"))


@pytest.fixture
def quiet_flower(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, value in {**QUIET, "FLWR_HOME": str(tmp_path / "flwr")}.items():
        monkeypatch.setenv(name, value)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def handshake(server: Path, ca: Path, host: str) -> str:
    """The TLS version that a client who trusts `ca` agrees on with the server whose files are in this folder."""
    there = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    there.load_cert_chain(server / "server.pem", server / "server.key")
    here = ssl.create_default_context(cafile=str(ca))
    here.verify_flags |= ssl.VERIFY_X509_STRICT  # as from Python 3.13
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = here.wrap_bio(down, up, server_hostname=host)
    ends = [client, there.wrap_bio(up, down, server_side=True)]
    while ends:
        for end in list(ends):
            try:
                end.do_handshake()
                ends.remove(end)
            except ssl.SSLWantReadError:
                pass
    return str(client.version())


def test_who_gets_what(made: Path) -> None:
    """Every part has its files and no others, and a private key is in one place only."""
    assert {path.name for path in made.iterdir()} == {"README.md", "federation.toml", "ca", "server", "clients", "app"}
    assert set(contents(made / "ca")) == {"ca.key"}
    assert set(contents(made / "server")) == {
        "ca.pem", "server.pem", "server.key", "fedtailor-server.service", "compose.yaml",
        "keys/client-0.pub", "keys/client-1.pub", "keys/client-2.pub",
    }  # fmt: skip
    for number in range(3):
        home = made / "clients" / f"client-{number}"
        assert set(contents(home)) == SITE
        assert tomllib.loads((home / "site.toml").read_text()) == {"server": "fed.example.org:9192", "client": number}
        assert (home / "client.pub").read_bytes() == (made / "server" / "keys" / f"client-{number}.pub").read_bytes()
        assert (home / "ca.pem").read_bytes() == (made / "server" / "ca.pem").read_bytes()
    secret = {name: data for name, data in contents(made).items() if b"PRIVATE KEY" in data}
    assert set(secret) == {"ca/ca.key", "server/server.key", *(f"clients/client-{k}/client.key" for k in range(3))}
    assert len(set(secret.values())) == 5


def test_modes(made: Path) -> None:
    """Even under a umask of 0 keys are their owner's alone, and so are the folders around them."""
    keys = list(made.rglob("*.key"))
    assert len(keys) == 5
    assert {path.stat().st_mode & 0o777 for path in keys} == {0o600}
    assert {path.parent.stat().st_mode & 0o777 for path in keys} == {0o700}
    assert (made / "server" / "server.pem").stat().st_mode & 0o777 == 0o644


def test_private_from_the_first_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the moment a private file is opened nobody else may read it, nor one that was left half-written before."""
    (tmp_path / "a.key.part").touch(0o666)
    seen: list[int] = []

    def watched(number: int, data: Any) -> int:
        seen.extend(path.stat().st_mode & 0o777 for path in tmp_path.iterdir())
        return write(number, data)

    write = os.write
    monkeypatch.setattr(os, "write", watched)
    write_atomic(tmp_path / "a.key", b"secret", private=True)
    assert seen == [0o600]
    assert contents(tmp_path) == {"a.key": b"secret"}


def test_federation_toml(made: Path, tmp_path: Path) -> None:
    federation = tomllib.loads((made / "federation.toml").read_text())
    keys = federation.pop("keys")
    assert federation == {
        "version": __version__, "hosts": list(HOSTS), "port": 9192, "control": 9193, "clients": 3,
    }  # fmt: skip
    assert list(keys) == ["client-0", "client-1", "client-2"]
    assert keys["client-1"] == pki.fingerprint((made / "clients" / "client-1" / "client.pub").read_bytes())
    init(tmp_path / "six", clients=1, hosts=["2001:db8::7"])
    assert read(tmp_path / "six").address == "[2001:db8::7]:9092"


@pytest.mark.skipif(not shutil.which("ssh-keygen"), reason="no ssh-keygen")
def test_fingerprint_is_that_of_ssh_keygen(made: Path) -> None:
    public = made / "server" / "keys" / "client-2.pub"
    told = subprocess.run(["ssh-keygen", "-lf", public], capture_output=True, text=True, check=True).stdout
    assert told.split()[1:3] == [read(made).keys["client-2"], "client-2"]


@pytest.mark.parametrize("host", [*HOSTS, "localhost", "127.0.0.1"])
def test_a_site_believes_the_server(made: Path, host: str) -> None:
    assert handshake(made / "server", made / "clients" / "client-0" / "ca.pem", host) == "TLSv1.3"


@pytest.mark.parametrize("host", ["other.example.org", "sub.fed.example.org", "192.0.2.8", "2001:db8::8"])
def test_another_host_is_refused(made: Path, host: str) -> None:
    with pytest.raises(ssl.SSLCertVerificationError, match=r"mismatch|not valid for"):
        handshake(made / "server", made / "server" / "ca.pem", host)


def test_another_federation_is_refused(made: Path, tmp_path: Path) -> None:
    """Though its authority has the same name."""
    init(tmp_path / "other", clients=1, hosts=HOSTS)
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(made / "server", tmp_path / "other" / "server" / "ca.pem", "fed.example.org")


def test_certificates(made: Path) -> None:
    ca, server = (
        x509.load_pem_x509_certificate((made / "server" / name).read_bytes()) for name in ("ca.pem", "server.pem")
    )
    server.verify_directly_issued_by(ca)
    assert (ca.not_valid_after_utc - ca.not_valid_before_utc).days == 3653
    assert server.not_valid_after_utc - server.not_valid_before_utc < timedelta(days=825)
    basic = [certificate.extensions.get_extension_for_class(x509.BasicConstraints) for certificate in (ca, server)]
    assert [(found.critical, found.value.ca) for found in basic] == [(True, True), (True, False)]


def test_no_certificate_outlives_its_authority(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pki, "CA_LIFE", timedelta(days=30))
    ca = pki.make_ca("short " + "x" * 100)
    server = pki.make_server_certificate(ca, HOSTS).certificate
    assert server.not_valid_after_utc == ca.certificate.not_valid_after_utc
    monkeypatch.setattr(pki, "CA_LIFE", timedelta(0))
    with pytest.raises(UserError, match="CA ended on"):
        pki.make_server_certificate(pki.make_ca("ended"), HOSTS)


@pytest.mark.usefixtures("quiet_flower")
def test_flower_takes_the_keys(made: Path) -> None:
    """The private one where a SuperNode starts, the public one where it is registered; they are a pair."""
    from flwr.cli.supernode.register import try_load_public_key
    from flwr.supercore.primitives.asymmetric import public_key_to_bytes
    from flwr.supernode.cli.flower_supernode import _try_setup_client_authentication

    home = made / "clients" / "client-0"
    given = argparse.Namespace(auth_supernode_private_key=str(home / "client.key"), auth_supernode_public_key=None)
    keys = _try_setup_client_authentication(given)
    assert keys is not None
    assert public_key_to_bytes(keys[1]) == try_load_public_key(made / "server" / "keys" / "client-0.pub")


@pytest.mark.usefixtures("quiet_flower")
def test_flower_builds_the_app(folder: Path, tmp_path: Path) -> None:
    """Without a network, and with nothing in it but what init wrote."""
    (folder / "app" / "fedtailor_app" / "stray.py").write_text("")
    (folder / "app" / "notes.md").write_text("")
    nowhere = {"http_proxy": "http://127.0.0.1:9", "https_proxy": "http://127.0.0.1:9"}
    command = [Path(sys.executable).with_name("flwr"), "build", "--app", folder / "app"]
    done = subprocess.run(command, cwd=tmp_path, env={**os.environ, **nowhere}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "missing" not in done.stdout
    (bundle,) = tmp_path.glob("*.fab")
    assert bundle.name.startswith(f"fedtailor.fedtailor-app.{__version__.replace('.', '-')}.")
    with zipfile.ZipFile(bundle) as packed:
        assert set(packed.namelist()) == {"pyproject.toml", "fedtailor_app/__init__.py", ".info/CONTENT"}
        app = tomllib.loads(packed.read("pyproject.toml").decode())["tool"]["flwr"]["app"]
    assert app["components"] == {"serverapp": "fedtailor_app:server", "clientapp": "fedtailor_app:client"}
    assert app["config"].keys() == CONFIG


UNITS = {
    "server/fedtailor-server.service": "flower server /var/lib/fedtailor-server --listen 0.0.0.0",
    "clients/client-1/fedtailor-client.service": "flower client --home /var/lib/fedtailor --data /srv/pictures",
}


@pytest.mark.parametrize(("name", "command"), UNITS.items())
def test_units(made: Path, name: str, command: str) -> None:
    unit = ConfigParser(interpolation=None)
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read(made / name)
    service = unit["Service"]
    assert service["ExecStart"] == f"/opt/fedtailor/bin/fedtailor {command}"
    assert (service["Restart"], service["RestartSec"]) == ("always", "5")
    assert (service["NoNewPrivileges"], service["ProtectSystem"]) == ("yes", "strict")
    state = f"/var/lib/{service['StateDirectory']}"
    assert state in command.split()
    assert service["Environment"].partition("CACHE=")[2].startswith(state)
    assert service["StateDirectoryMode"] == "0700"
    assert service["CapabilityBoundingSet"] == ""
    assert unit["Install"]["WantedBy"] == "multi-user.target"


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="no systemd-analyze")
@pytest.mark.parametrize("name", UNITS)
def test_systemd_takes_the_units(made: Path, tmp_path: Path, name: str) -> None:
    unit = tmp_path / Path(name).name
    unit.write_text((made / name).read_text().replace("/opt/fedtailor/bin/fedtailor", sys.executable))
    done = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True)
    assert unit.name not in done.stderr, done.stderr
    assert done.returncode == 0, done.stderr


def test_compose(made: Path) -> None:
    """The server opens the sites' port and no other, a site none; neither is let write outside its folder."""
    server = yaml.safe_load((made / "server" / "compose.yaml").read_text())["services"]["server"]
    client = yaml.safe_load((made / "clients" / "client-2" / "compose.yaml").read_text())["services"]["client"]
    assert server["ports"] == ["9192:9192"]
    assert "ports" not in client
    assert [volume for volume in server["volumes"] if not volume.endswith(":ro")] == [
        ".:/var/lib/fedtailor-server/server"
    ]
    assert [volume for volume in client["volumes"] if not volume.endswith(":ro")] == [".:/var/lib/fedtailor"]
    assert " ".join(server["command"]) == "fedtailor " + UNITS["server/fedtailor-server.service"]
    assert " ".join(client["command"]) == "fedtailor " + UNITS["clients/client-1/fedtailor-client.service"]
    for service in (server, client):
        assert (service["read_only"], service["restart"], service["cap_drop"]) == (True, "always", ["ALL"])
        assert f'"fedtailor[flower]=={__version__}"' in service["build"]["dockerfile_inline"]


def test_a_port_for_which_one_needs_to_be_root(tmp_path: Path) -> None:
    """443, say: the unit grants that and no more."""
    init(tmp_path / "fed", 1, HOSTS, port=443)
    unit = (tmp_path / "fed" / "server" / "fedtailor-server.service").read_text()
    assert "\nCapabilityBoundingSet=CAP_NET_BIND_SERVICE\nAmbientCapabilities=CAP_NET_BIND_SERVICE\n" in unit
    assert read(tmp_path / "fed").address == "fed.example.org:443"


def test_pages(made: Path) -> None:
    """They name this federation's own address and ports."""
    page, site = (made / "README.md").read_text(), (made / "clients" / "client-2" / "README.md").read_text()
    assert all(word in page for word in ("fed.example.org:9192", "Port 9193", "ca.key", "offline"))
    assert "Client 2 " in site
    assert "fed.example.org:9192" in site


@pytest.mark.parametrize("kind", ["something", "federation", "file"])
def test_a_folder_that_is_not_empty_is_left_alone(folder: Path, tmp_path: Path, kind: str) -> None:
    target = folder if kind == "federation" else tmp_path / kind
    if kind == "something":
        target.mkdir()
        (target / "notes").write_text("mine")
    elif kind == "file":
        target.write_text("mine")
    before = contents(tmp_path)
    told = {"something": "not empty; choose", "federation": "fedtailor flower add", "file": "cannot make the folder"}
    with pytest.raises(UserError, match=told[kind]):
        init(target, clients=1, hosts=HOSTS)
    assert contents(tmp_path) == before


def test_an_empty_folder_is_taken(tmp_path: Path) -> None:
    init(tmp_path, clients=1, hosts=["fed"])
    assert read(tmp_path).clients == 1


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "fewer than none": ({"clients": -1}, r"clients: .* greater than or equal to 0, got -1"),
    "no host": ({"hosts": []}, "no host; .*--host"),
    "one string": ({"hosts": "fed.example.org"}, "hosts: .*got 'fed.example.org'"),
    "port": ({"port": 70000}, r"port: .* less than or equal to 65535, got 70000"),
    "equal ports": ({"port": 9093}, "both 9093"),
    **{
        host: ({"hosts": ["fed.example.org", host]}, "is not a host; give a plain name")
        for host in (
            "", " ", "fed.example.org:9092", "https://fed.example.org", "fed.example.org/", "[::1]", "fe80::1%eth0",
            "*.example.org", "-fed.example.org", "fed..example.org", "fed.example.org\n", "10.0.0.256",
            "bücher.example", "a" * 64, "a." * 127 + "org",
        )
    },
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_wrong_input_makes_nothing(tmp_path: Path, case: str) -> None:
    given, told = WRONG[case]
    with pytest.raises(UserError, match=told):
        init(tmp_path / "new", **{"clients": 2, "hosts": HOSTS, **given})
    assert not (tmp_path / "new").exists()


def test_add_a_client(folder: Path) -> None:
    """It gets the next number; what was there stays, also where another site was taken out."""
    before = contents(folder)
    assert add_client(folder) == 3
    after = contents(folder)
    new = {f"clients/client-3/{name}" for name in SITE} | {"server/keys/client-3.pub"}
    assert set(after) == set(before) | new
    assert {name for name in before if after[name] != before[name]} == {"federation.toml"}
    assert (folder / "clients" / "client-3" / "client.key").stat().st_mode & 0o777 == 0o600
    assert read(folder).clients == 4
    assert read(folder).keys["client-3"] == pki.fingerprint(after["server/keys/client-3.pub"])
    shutil.rmtree(folder / "clients")
    (folder / "server" / "keys" / "client-3.pub").unlink()
    assert add_client(folder) == 4


def test_a_site_is_never_written_over(folder: Path) -> None:
    (folder / "clients" / "client-3").mkdir()
    before = contents(folder)
    with pytest.raises(UserError, match="client-3 exists"):
        add_client(folder)
    assert contents(folder) == before


def test_renew(folder: Path) -> None:
    """A new key and certificate, under the hosts as they are now, that sites believe with the ca.pem they have."""
    toml = folder / "federation.toml"
    toml.write_text(toml.read_text().replace("fed.example.org", "new.example.org"))
    before = contents(folder)
    renew(folder)
    after = contents(folder)
    assert {name for name in after if after[name] != before[name]} == {"server/server.key", "server/server.pem"}
    assert (folder / "server" / "server.key").stat().st_mode & 0o777 == 0o600
    ca = folder / "clients" / "client-1" / "ca.pem"
    assert handshake(folder / "server", ca, "new.example.org") == "TLSv1.3"
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(folder / "server", ca, "fed.example.org")


def test_renew_needs_the_right_key(folder: Path) -> None:
    key = folder / "ca" / "ca.key"
    before = contents(folder / "server")
    key.write_bytes(before["server.key"])
    with pytest.raises(UserError, match="key of another federation"):
        renew(folder)
    key.write_bytes(before["server.key"][:99])
    with pytest.raises(UserError, match="is not a key"):
        renew(folder)
    key.unlink()
    with pytest.raises(UserError, match="put it back"):
        renew(folder)
    assert contents(folder / "server") == before


@pytest.mark.parametrize("change", [add_client, renew])
def test_no_federation(folder: Path, tmp_path: Path, change: Callable[[Path], object]) -> None:
    with pytest.raises(UserError, match="is no federation"):
        change(tmp_path)
    toml = folder / "federation.toml"
    for text, told in {"port = ": "is not readable", "port = 1": "field required"}.items():
        toml.write_text(text)
        with pytest.raises(UserError, match=told):
            change(folder)
