"""A superlink and three supernodes on loopback, TLS and keys: the same bits as one process has on the same files."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from deployed import SITES, SMALL, Deployed, until, write_data

import fedtailor
from fedtailor.client.codec import client_to_bytes
from fedtailor.flower.models import SiteModels
from fedtailor.remote.client import StateFiles
from fedtailor.runs.folder import RunFolder
from fedtailor.runs.server_bytes import server_to_bytes

pytestmark = pytest.mark.flower


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployed]:
    folder = tmp_path_factory.mktemp("deployed")
    made = Deployed(folder, write_data(folder / "data"))
    try:
        made.start()
        yield made
    finally:
        made.stop()


def same_as_local(there: Deployed, name: str, method: str, tmp_path: Path, **more: object) -> None:
    """Server, every site's state and every number of the last round."""
    data = {"data": f"csv:{there.data / 'sites.csv'}", "data.partition": "site", "clients": SITES}
    settings = {**SMALL, **data, "fraction": 1.0, **more}
    fedtailor.run(method, settings, out=tmp_path / name)
    here, away = RunFolder(tmp_path / name).resume(), RunFolder(there.runs / name).resume()
    assert here is not None
    assert away is not None
    assert server_to_bytes(here[0]) == server_to_bytes(away[0])
    run = (there.runs / name / "id").read_text()
    for k, client in here[1].items():
        ledger = away[1][k]
        state = StateFiles(there.home / "clients" / f"client-{k}" / "state" / run).read(ledger.version, ledger.state_id)
        assert client_to_bytes(replace(state, state_id="")) == client_to_bytes(client)
    ours = [json.loads(line) for line in (tmp_path / name / "rounds.jsonl").read_text().splitlines()]
    theirs = there.rows(name)
    places = json.loads((tmp_path / name / "data.json").read_text())["clients"]  # as the table has them
    site = {f"client-{k}": place for k, place in enumerate(places)}
    assert [row["cohort"] for row in ours] == [[site[key] for key in row["cohort"]] for row in theirs]
    assert [(row["bytes_up"], row["bytes_down"]) for row in ours] == [
        (row["bytes_up"], row["bytes_down"]) for row in theirs
    ]
    assert ours[-1]["clients"] == {site[key]: overall for key, overall in theirs[-1]["clients"].items()}
    assert ours[-1]["global"]["overall"] == theirs[-1]["global"]["overall"]
    assert not any(row["dropped"] for row in theirs)


@pytest.mark.parametrize("method", ["capt", "fedpurel", "fedcopl"])
def test_the_same_bits_as_in_one_process(method: str, there: Deployed, tmp_path: Path) -> None:
    there.run(method, method)
    same_as_local(there, method, method, tmp_path)


def test_updates_in_fewer_bits(there: Deployed, tmp_path: Path) -> None:
    there.run("int8", "promptfl", **{"plan.updates": "int8"})
    same_as_local(there, "int8", "promptfl", tmp_path, **{"plan.updates": "int8"})


def test_a_server_with_class_names_alone(there: Deployed, tmp_path: Path) -> None:
    """Its numbers are the sites'."""
    names = tmp_path / "names"
    names.mkdir()
    shutil.copy(there.data / "server" / "classes.txt", names)
    summary = there.run("nameless", "promptfl", data=f"folder:{names}")
    there.run("named", "promptfl")
    assert bits(there, "nameless") == bits(there, "named")
    assert 0 < summary["zero_shot"]["overall"] <= summary["global"]["overall"]


def test_sites_without_labels(tmp_path: Path) -> None:
    """Heaps of pictures: the same as a table whose training rows have no labels."""
    there = Deployed(tmp_path, write_data(tmp_path / "data", unlabelled=True))
    try:
        there.start()
        there.run("heaps", "fedcopl")
        same_as_local(there, "heaps", "fedcopl", tmp_path)
    finally:
        there.stop()


def bits(there: Deployed, name: str) -> bytes:
    saved = RunFolder(there.runs / name).resume()
    assert saved is not None
    return server_to_bytes(saved[0])


def test_secure_sums_among_sites_that_know_each_others_keys(tmp_path: Path) -> None:
    """The same model as without, but for rounding; a run without is refused by their policies."""
    there = Deployed(tmp_path, write_data(tmp_path / "data"))
    homes = [there.home / "clients" / f"client-{k}" for k in range(SITES)]
    peers = json.dumps([(home / "client.pub").read_text().strip() for home in homes])
    for home in homes:
        (home / "policy.toml").write_text(f'secure = "required"\npeers = {peers}\n')
    try:
        there.start()
        there.run("sums", "promptfl", secure="masked")
        data = {"data": f"csv:{there.data / 'sites.csv'}", "data.partition": "site", "clients": SITES}
        fedtailor.run("promptfl", {**SMALL, **data, "fraction": 1.0}, out=tmp_path / "plain")
        sums, plain = RunFolder(there.runs / "sums").resume(), RunFolder(tmp_path / "plain").resume()
        assert sums is not None
        assert plain is not None
        for name, value in plain[0].params.items():
            assert torch.allclose(value, sums[0].params[name], atol=1e-4)
        assert {row["weight"] for row in there.rows("sums", "clients")} == {None}
        there.ask("plain", "promptfl")
        failure = there.runs / "plain" / "failure.txt"
        until(failure.is_file, told=there.logs)
        assert "its policy asks for secure=masked" in failure.read_text()
    finally:
        there.stop()


def test_every_site_has_the_model(there: Deployed, tmp_path: Path) -> None:
    """Also one that is away when the run ends, once it is back; and it answers as the same run does in one place."""
    there.kill("client-2")
    there.ask(
        "models", "fedpurel", **{"plan.quorum": 0.5, "plan.deadline": 15, "rounds": 1, "every": 1, "method.T_p": 1}
    )
    there.finished("models")
    file = there.runs / "models" / "models.json"
    until(lambda: file.is_file() and SiteModels(file.parent).owed == ["client-2"], told=there.logs)
    there.client(2)
    until(lambda: not SiteModels(file.parent).owed, told=there.logs)
    assert set(SiteModels(file.parent).of.values()) == {"kept"}
    for k in range(SITES):
        (folder,) = (there.home / "clients" / f"client-{k}" / "models").glob("models-*")
        there.fedtailor("predict", folder, there.data / f"site-{k}" / "test", "--json")
        model = fedtailor.load(folder)
        assert model.has_own("own") == (k != 2)  # who never took part has what all share
        here = json.loads(there.fedtailor("evaluate", folder, there.data / f"site-{k}", "--client", "own", "--json"))
        assert model.facts.scores["personal"]["overall"] == pytest.approx(here["tuned"]["overall"])
