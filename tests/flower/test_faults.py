"""What can go wrong in a real federation: nothing is lost, each is recorded, and where promised, the same bits."""

from __future__ import annotations

import shutil
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest
from deployed import SITES, Deployed, until, write_data
from flwr.supercore.protobuf.constants import PROTOBUF_MEDIA_TYPE

from fedtailor.base.version import __version__
from fedtailor.flower.init import add_client
from fedtailor.runs.folder import RunFolder
from fedtailor.runs.server_bytes import server_to_bytes

pytestmark = pytest.mark.flower


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployed]:
    folder = tmp_path_factory.mktemp("faults")
    made = Deployed(folder, write_data(folder / "data"))
    try:
        made.start()
        made.run("straight", "promptfl")
        yield made
    finally:
        made.stop()


@pytest.fixture(autouse=True)
def all_well(there: Deployed) -> Iterator[None]:
    """Every test finds, and leaves, a server and three honest sites."""
    yield
    for name in [name for name in there.processes if there.processes[name].poll() is not None]:
        there.processes.pop(name)
    if "server" not in there.processes:
        there.server()
    for k in range(SITES):
        if f"client-{k}" not in there.processes:
            there.client(k)
    there.online(SITES)


def bits(there: Deployed, name: str) -> bytes:
    saved = RunFolder(there.runs / name).resume()
    assert saved is not None
    return server_to_bytes(saved[0])


def stop_client(there: Deployed, k: int) -> None:
    process = there.processes.pop(f"client-{k}")
    process.terminate()
    process.wait(timeout=30)


def rogue(there: Deployed, k: int, fault: str) -> None:
    """In place of an honest site."""
    stop_client(there, k)
    (there.home / "clients" / f"client-{k}" / "fault.done").unlink(missing_ok=True)
    there.rogue(k, fault)
    until(lambda: there.status()["sites"][k]["state"] == "online", told=there.logs)


def wait_for_round(there: Deployed, name: str, count: int) -> None:
    until(lambda: len(there.rows(name)) >= count, told=there.logs)


@pytest.mark.parametrize("moment", [0.5, 1.5, 3.0])
def test_the_server_is_killed(there: Deployed, moment: float) -> None:
    name = f"server-killed-{moment}"
    there.ask(name, "promptfl")
    wait_for_round(there, name, 1)
    time.sleep(moment)
    there.kill("server")
    there.server()
    there.finished(name)
    assert bits(there, name) == bits(there, "straight")
    assert len(there.rows(name)) == 3


@pytest.mark.parametrize("moment", [0.5, 2.0])
def test_a_client_is_killed(there: Deployed, moment: float) -> None:
    name = f"client-killed-{moment}"
    there.ask(name, "promptfl")
    wait_for_round(there, name, 1)
    time.sleep(moment)
    there.kill("client-1")
    there.client(1)
    there.finished(name)
    assert bits(there, name) == bits(there, "straight")


def test_all_are_killed(there: Deployed) -> None:
    there.ask("all-killed", "promptfl")
    wait_for_round(there, "all-killed", 1)
    for name in list(there.processes):
        there.kill(name)
    there.start()
    there.finished("all-killed")
    assert bits(there, "all-killed") == bits(there, "straight")


def test_a_client_dies_before_it_can_answer(there: Deployed) -> None:
    """Its node says goodbye properly, so that Flower tells nobody of the message that is lost."""
    rogue(there, 2, "crash")
    there.ask("crash", "promptfl")
    until(lambda: there.processes["client-2"].poll() is not None, told=there.logs)
    there.processes.pop("client-2")
    there.client(2)
    there.finished("crash")
    assert bits(there, "crash") == bits(there, "straight")


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        ("nan", "no longer finite"),
        ("shapes", "came back as"),
        ("truncated", "cut short"),
        ("replay", "only to an earlier request"),
        ("disk full", "its disk is full"),
    ],
)
def test_a_client_goes_wrong(there: Deployed, fault: str, told: str) -> None:
    """It is out of that round, with the reason, and in the next again."""
    rogue(there, 0, fault)
    name = fault.replace(" ", "-")
    there.run(name, "promptfl", **{"plan.quorum": 0.5, "plan.deadline": 40})
    rows = there.rows(name)
    assert [sorted(row["dropped"]) for row in rows] == [[], ["client-0"], []]
    assert told in rows[1]["dropped"]["client-0"]
    visits = [(row["round"], row["client"], bool(row["dropped"])) for row in there.rows(name, "clients")]
    assert sorted(visits) == [(t, f"client-{k}", (t, k) == (2, 0)) for t in range(1, 4) for k in range(SITES)]
    stop_client(there, 0)


def test_a_client_is_too_slow(there: Deployed) -> None:
    rogue(there, 0, "slow")
    there.run("slow", "promptfl", **{"plan.quorum": 0.5, "plan.deadline": 30})
    rows = there.rows("slow")
    assert rows[1]["dropped"] == {"client-0": "late: no reply in time"}
    assert 30 <= rows[1]["seconds"] < 60
    there.kill("client-0")


@pytest.mark.parametrize(("fault", "told"), [("huge", "late"), ("bomb", "1000 MB, more than the 256")])
def test_a_gigabyte_is_not_taken(there: Deployed, fault: str, told: str) -> None:
    """Neither if it comes in many pieces, which are not let in, nor if it is one piece that is named many times."""
    rogue(there, 0, fault)
    there.run(fault, "promptfl", **{"plan.quorum": 0.5, "plan.deadline": 60})
    assert told in there.rows(fault)[1]["dropped"]["client-0"]
    database = there.home / "server" / "flwr" / "state.db"
    assert database.stat().st_size < 100e6
    stop_client(there, 0)


def test_a_site_of_another_version_is_waited_for(there: Deployed) -> None:
    """The log and `status` say who is to be upgraded; once it is, the run begins."""
    rogue(there, 1, "version")
    there.ask("version", "promptfl")
    told = f"client-1 has fedtailor 0.0.0, this server {__version__}: upgrade it"
    until(lambda: told in there.status()["warnings"], told=there.logs)
    assert told in (there.folder / "server.log").read_text()
    assert not there.rows("version")
    stop_client(there, 1)
    there.client(1)
    until((there.runs / "version" / "result.json").is_file, told=there.logs)
    assert all(not row["dropped"] for row in there.rows("version"))
    assert there.status()["warnings"] == []


def test_a_client_without_its_state_stops_the_run_until_it_is_back(there: Deployed) -> None:
    long = {"rounds": 20, "every": 20}
    there.run("long", "promptfl", **long)
    there.ask("lost", "promptfl", **long)
    wait_for_round(there, "lost", 1)
    there.fedtailor("flower", "stop", there.home, "lost")
    run = (there.runs / "lost" / "id").read_text()
    state = there.home / "clients" / "client-1" / "state" / run
    shutil.move(state, there.folder / "kept")
    until(lambda: "lost: stopped" in (there.folder / "server.log").read_text(), told=there.logs)
    there.fedtailor("flower", "run", there.home, "--resume", "lost", "--detach")
    failure = there.runs / "lost" / "failure.txt"
    until(failure.is_file, told=there.logs)
    assert "client 1 has lost its state" in failure.read_text()
    shutil.rmtree(state)
    shutil.move(there.folder / "kept", state)
    there.fedtailor("flower", "run", there.home, "--resume", "lost", "--detach")
    there.finished("lost")
    assert bits(there, "lost") == bits(there, "long")


def test_a_key_that_is_not_registered_is_refused(there: Deployed) -> None:
    other = there.folder / "other"
    shutil.copytree(there.home, other, ignore=shutil.ignore_patterns("flwr", "log", "state", ".lock", "runs"))
    number = add_client(other)
    words = ("flower", "client", "--home", other, "--client", number, "--data", there.data / "site-0")
    there.spawn("stranger", *words)
    log = there.folder / "stranger.log"
    try:
        until(lambda: "trying again" in log.read_text(), told=there.logs)
    finally:
        there.processes["stranger"].terminate()
        there.processes.pop("stranger").wait(timeout=30)
    assert len(there.status()["sites"]) == SITES


def test_nothing_goes_in_plain_text_and_only_letters_from_outside(there: Deployed) -> None:
    trusted = ssl.create_default_context(cafile=str(there.home / "server" / "ca.pem"))

    def ask(url: str, path: str) -> int:
        request = urllib.request.Request(f"{url}{path}", b"", {"content-type": PROTOBUF_MEDIA_TYPE})
        try:
            with urllib.request.urlopen(request, context=trusted if url.startswith("https") else None) as answer:
                status: int = answer.status
                return status
        except urllib.error.HTTPError as error:
            return error.code

    with pytest.raises((urllib.error.URLError, ConnectionError)):
        ask(f"http://127.0.0.1:{there.port}", "/v1/fleet/activate-node")
    outside, inside = f"https://127.0.0.1:{there.port}", f"https://127.0.0.1:{there.control}"
    for path in ("/v1/control/start-run", "/v1/control/list-runs", "/v1/runtime/acquire-task", "/docs", "/health"):
        assert ask(outside, path) == 404
    assert ask(outside, "/v1/fleet/activate-node") == 401  # nobody's key
    assert ask(inside, "/v1/control/list-runs") == 401  # without the token, which the account of the server can read
    assert (there.home / "server" / "flwr" / "token").stat().st_mode & 0o777 == 0o600
    assert there.status()["server"] == "up"
