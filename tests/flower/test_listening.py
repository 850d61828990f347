"""Who could connect: every listening socket of a simulation and of a deployment, found by looking."""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from collections.abc import Iterator
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
from deployed import SITES, Deployed, write_data
from listening import Listener, listeners

import fedtailor
from fedtailor.base.errors import UserError
from fedtailor.flower.simulation import check_loopback

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")


def test_looking_finds_what_listens() -> None:
    with socket.socket() as everywhere, socket.socket(socket.AF_INET6) as here, socket.socket() as silent:
        everywhere.bind(("0.0.0.0", 0))
        here.bind(("::ffff:127.0.0.1", 0))
        silent.bind(("0.0.0.0", 0))
        everywhere.listen()
        here.listen()
        found = {(it.host, it.port): it.local for it in listeners(os.getpid())}
        assert found[everywhere.getsockname()] is False
        assert found[str(ip_address("::ffff:127.0.0.1")), here.getsockname()[1]] is True
        assert silent.getsockname() not in found


@pytest.mark.flower
@pytest.mark.filterwarnings("default")
def test_a_simulation_listens_on_the_loopback_alone(tmp_path: Path) -> None:
    data, seen, over = write_data(tmp_path / "data"), set[Listener](), threading.Event()

    def look() -> None:
        while not over.is_set():
            try:
                seen.update(listeners(os.getpid()))
            except FileNotFoundError:  # a process has ended meanwhile
                continue
            time.sleep(0.2)

    looking = threading.Thread(target=look)
    looking.start()
    try:
        settings: dict[str, Any] = {"rounds": 2, "batch": 8, "threads": 1, "clients": SITES, "engine": "flower"}
        where = {"data": f"csv:{data / 'sites.csv'}", "data.partition": "site"}
        fedtailor.run("promptfl", settings | where, out=tmp_path / "run")
    finally:
        over.set()
        looking.join()
    assert {name for name in ("gcs_server", "raylet", "ray::") if any(name in it.command for it in seen)} == {
        "gcs_server", "raylet", "ray::",
    }  # fmt: skip
    assert [it for it in seen if not it.local] == []


def test_a_ray_that_listens_elsewhere_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = pytest.importorskip("ray")
    check_loopback()
    monkeypatch.setattr(ray.util, "get_node_ip_address", lambda: "192.0.2.2")
    with pytest.raises(UserError, match=r"Ray listens on 192\.0\.2\.2.*import fedtailor\.flower first"):
        check_loopback()


class Open(Deployed):
    listen = "0.0.0.0"


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployed]:
    folder = tmp_path_factory.mktemp("open")
    made = Open(folder, write_data(folder / "data"))
    try:
        made.start()
        yield made
    finally:
        made.stop()


@pytest.mark.flower
def test_a_deployment_listens_where_it_is_told_to(there: Deployed) -> None:
    """The sites' port, everywhere if --listen says so; a site nowhere but on its own machine."""
    at_server = listeners(there.processes["server"].pid)
    assert {(it.port, it.local) for it in at_server} == {(there.port, False), (there.control, True)}
    for k in range(SITES):
        at_site = listeners(there.processes[f"client-{k}"].pid)
        assert [it for it in at_site if not it.local] == []
        assert at_site
