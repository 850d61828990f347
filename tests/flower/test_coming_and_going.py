"""Sites that join a run under way and leave it, over processes; and what the server tells of it meanwhile."""

from __future__ import annotations

import json
import shutil
import ssl
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from deployed import Deployed, until, write_data

from fedtailor.base.version import __version__

pytestmark = [pytest.mark.flower]


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployed]:
    folder = tmp_path_factory.mktemp("coming")
    there = Deployed(folder, write_data(folder / "data"))
    yield there
    there.stop()


def ask(there: Deployed, path: str, port: int, token: str = "") -> str:
    trusted = ssl.create_default_context(cafile=str(there.home / "server" / "ca.pem"))
    request = urllib.request.Request(f"https://127.0.0.1:{port}{path}", headers={"authorization": f"Bearer {token}"})
    with urllib.request.urlopen(request, context=trusted, timeout=60) as answer:
        text: str = answer.read().decode()
        return text


def round_with(there: Deployed, change: str, name: str) -> int:
    """The round before which a site came or went."""
    rounds = until(lambda: [row["round"] for row in there.rows("mine") if name in row[change]], told=there.logs)
    return int(rounds[0])


def test_a_site_joins_and_another_leaves(there: Deployed) -> None:
    keys, log = there.home / "server" / "keys", there.folder / "server.log"
    shutil.move(keys / "client-2.pub", there.folder / "client-2.pub")
    there.server()
    there.ask("mine", "promptfl", rounds=200, every=200)
    until(lambda: "0 of 2 sites are ready; waiting for client-0, client-1" in log.read_text(), told=there.logs)
    (waiting,) = there.status()["runs"]
    assert (waiting["doing"], waiting["awaited"]) == ("getting ready", ["client-0", "client-1"])
    there.client(0)
    there.client(1)
    until(lambda: len(there.rows("mine")) >= 2, told=there.logs)

    shutil.move(there.folder / "client-2.pub", keys / "client-2.pub")
    there.rogue(2, "version")
    told = f"client-2 cannot join this run: it has fedtailor 0.0.0, this server {__version__}: upgrade it"
    until(lambda: told in log.read_text(), told=there.logs)
    before = len(there.rows("mine"))
    until(lambda: len(there.rows("mine")) > before, told=there.logs)
    upgraded = there.processes.pop("client-2")
    upgraded.terminate()
    upgraded.wait(timeout=60)
    there.client(2)
    joined = round_with(there, "joined", "client-2")
    assert joined > 2
    assert there.rows("mine")[joined - 1]["cohort"] == ["client-0", "client-1", "client-2"]
    look_at(there)

    (keys / "client-1.pub").unlink()
    left = round_with(there, "left", "client-1")
    assert there.rows("mine")[left - 1]["cohort"] == ["client-0", "client-2"]
    members = json.loads((there.runs / "mine" / "members.json").read_text())["members"]
    assert members == [
        {"name": "client-0", "rounds": [1]},
        {"name": "client-1", "rounds": [1, left]},
        {"name": "client-2", "rounds": [joined]},
    ]
    there.fedtailor("flower", "stop", there.home, "mine")
    until(lambda: "mine: stopped" in log.read_text(), told=there.logs)
    assert "goes on after round" in log.read_text()
    assert {row["round"] for row in there.rows("mine")} == {*range(1, len(there.rows("mine")) + 1)}


def look_at(there: Deployed) -> None:
    """What status, /health and /metrics say of the run under way."""
    found = until(lambda: (it := there.status())["runs"][0].get("left") and it, told=there.logs)
    (run,), sites = found["runs"], found["sites"]
    assert (run["state"], run["of"]) == ("running", 200)
    assert run["elapsed"] > 0
    assert {site["name"]: site["version"] for site in sites} == dict.fromkeys(
        ("client-0", "client-1", "client-2"), found["version"]
    )
    assert all(site["seen"] for site in sites)
    health = json.loads(ask(there, "/health", there.control))
    assert (health["status"], health["run"]["name"]) == ("up", "mine")
    told = ask(there, "/metrics", there.control, (there.home / "server" / "flwr" / "token").read_text())
    assert 'fedtailor_site_online{site="client-2"} 1' in told
    assert 'fedtailor_rounds{run="mine"} 200' in told
    with pytest.raises(urllib.error.HTTPError, match="401"):
        ask(there, "/metrics", there.control)
    for path in ("/health", "/metrics"):
        with pytest.raises(urllib.error.HTTPError, match="404"):
            ask(there, path, there.port)
    command = [sys.executable, "-m", "fedtailor.flower.health", str(there.home)]
    assert subprocess.run(command, check=True, capture_output=True, timeout=60).stdout
    stranger = subprocess.run([*command[:-1], str(Path("nowhere"))], check=False, capture_output=True, timeout=60)
    assert stranger.returncode == 1
