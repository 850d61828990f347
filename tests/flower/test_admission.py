"""A server that runs: a site with a key of its own making comes in, and is put out again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from deployed import Deployed, until, write_data

pytestmark = pytest.mark.flower


@pytest.fixture
def there(tmp_path: Path) -> Iterator[Deployed]:
    made = Deployed(tmp_path, write_data(tmp_path / "data"))
    try:
        made.server()
        yield made
    finally:
        made.stop()


def test_a_site_comes_and_goes_while_the_server_runs(there: Deployed, tmp_path: Path) -> None:
    until(lambda: there.status()["server"] == "up", told=there.logs)
    home = tmp_path / "north"
    there.fedtailor("flower", "join", "--home", home)
    there.fedtailor("flower", "add", there.home, "--key", home / "client.pub", "--name", "north")
    there.fedtailor("flower", "join", "--home", home, "--answer", there.home / "clients" / "north.toml")
    there.spawn("north", "flower", "client", "--home", home, "--data", there.data / "site-0")

    def state() -> str | None:
        return {site["name"]: site["state"] for site in there.status()["sites"]}.get("north")

    until(lambda: state() == "online", told=there.logs)
    there.fedtailor("flower", "remove", there.home, "north")
    assert state() is None
    log = tmp_path / "north.log"
    until(lambda: "trying again" in log.read_text(), told=there.logs)  # it is refused, and keeps asking
    told = (tmp_path / "server.log").read_text()
    assert "may come in: north" in " ".join(told.split())
    until(lambda: "no longer: north" in " ".join((tmp_path / "server.log").read_text().split()), told=there.logs)
    assert there.status()["server"] == "up"
