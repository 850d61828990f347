"""Four hosts on one machine, by network namespaces: a cable that is pulled in the middle of a round, and put back."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
from deployed import SITES, Deployed, until, write_data

from fedtailor.runs.folder import RunFolder
from fedtailor.runs.server_bytes import server_to_bytes


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


def permitted() -> bool:
    if sys.platform != "linux" or os.geteuid() != 0 or shutil.which("ip") is None:
        return False
    try:
        ip("netns", "add", "ft-try")
        ip("netns", "del", "ft-try")
    except subprocess.CalledProcessError:
        return False
    return True


pytestmark = [pytest.mark.flower, pytest.mark.skipif(not permitted(), reason="network namespaces are not permitted")]


class Hosts(Deployed):
    """A cable from each site to the server, and no other way: nobody here has a route to anywhere else."""

    hosts = tuple(f"10.77.{k}.1" for k in range(SITES))
    listen = "0.0.0.0"  # in a namespace of its own

    def at(self, name: str) -> list[str]:
        return ["ip", "netns", "exec", f"ft-{name}"]

    def wire(self) -> None:
        for name in ("server", *(f"client-{k}" for k in range(SITES))):
            ip("netns", "add", f"ft-{name}")
            ip("-n", f"ft-{name}", "link", "set", "lo", "up")
        for k in range(SITES):
            ends = {"ft-server": (f"ft-s{k}", f"10.77.{k}.1/24"), f"ft-client-{k}": (f"ft-c{k}", f"10.77.{k}.2/24")}
            ip("link", "add", f"ft-s{k}", "type", "veth", "peer", "name", f"ft-c{k}")
            for host, (end, address) in ends.items():
                ip("link", "set", end, "netns", host)
                ip("-n", host, "addr", "add", address, "dev", end)
                ip("-n", host, "link", "set", end, "up")

    def unwire(self) -> None:
        for name in ("server", *(f"client-{k}" for k in range(SITES))):
            subprocess.run(["ip", "netns", "del", f"ft-{name}"], check=False, capture_output=True)

    def introduce(self) -> None:
        """Each site knows the server by the address at the other end of its own cable."""
        for k in range(SITES):
            site = self.home / "clients" / f"client-{k}" / "site.toml"
            site.write_text(site.read_text().replace("10.77.0.1", f"10.77.{k}.1"))

    def cable(self, k: int, state: str) -> None:
        ip("-n", f"ft-client-{k}", "link", "set", f"ft-c{k}", state)


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    folder = tmp_path_factory.mktemp("hosts")
    Hosts.unwire(Hosts.__new__(Hosts))
    Hosts.wire(Hosts.__new__(Hosts))
    made = Hosts(folder, write_data(folder / "data"))
    try:
        made.introduce()
        made.start()
        made.run("straight", "promptfl")
        yield made
    finally:
        made.stop()
        made.unwire()


def bits(there: Deployed, name: str) -> bytes:
    saved = RunFolder(there.runs / name).resume()
    assert saved is not None
    return server_to_bytes(saved[0])


def test_a_cable_is_pulled_and_put_back(there: Hosts) -> None:
    there.ask("pulled", "promptfl")
    until(lambda: there.rows("pulled"), told=there.logs)
    there.cable(1, "down")
    time.sleep(15)
    there.cable(1, "up")
    there.finished("pulled")
    assert bits(there, "pulled") == bits(there, "straight")
    assert not any(row["dropped"] for row in there.rows("pulled"))


def test_a_cable_is_pulled_for_good(there: Hosts) -> None:
    """The others go on without it."""
    there.ask("cut", "promptfl", **{"plan.quorum": 0.5, "plan.deadline": 30})
    until(lambda: there.rows("cut"), told=there.logs)
    there.cable(2, "down")
    try:
        there.finished("cut")
        assert [list(row["dropped"]) for row in there.rows("cut")][-1] == ["client-2"]
    finally:
        there.cable(2, "up")
