"""A superlink and three supernodes on loopback, TLS and keys: the same bits as one process has on the same files."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from deployed import SITES, SMALL, Deployed, write_data

import fedtailor
from fedtailor.site import States
from fedtailor.store import Store, server_to_bytes
from fedtailor.wire import client_to_bytes

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


def same_as_local(there: Deployed, name: str, method: str, tmp_path: Path) -> None:
    """Server, every site's state and every number of the last round."""
    data = {"data": f"csv:{there.data / 'sites.csv'}", "data.partition": "site", "clients": SITES}
    settings = {**SMALL, **data, "fraction": 1.0}
    fedtailor.run(method, settings, out=tmp_path / name)
    here, away = Store(tmp_path / name).resume(), Store(there.runs / name).resume()
    assert here is not None
    assert away is not None
    assert server_to_bytes(here[0]) == server_to_bytes(away[0])
    run = (there.runs / name / "id").read_text()
    for k, client in here[1].items():
        ledger = away[1][k]
        state = States(there.home / "clients" / f"client-{k}" / "state" / run).read(ledger.version, ledger.mark)
        assert client_to_bytes(replace(state, mark="")) == client_to_bytes(client)
    ours = [json.loads(line) for line in (tmp_path / name / "rounds.jsonl").read_text().splitlines()]
    theirs = there.rows(name)
    assert [row["cohort"] for row in ours] == [row["cohort"] for row in theirs]
    assert [(row["bytes_up"], row["bytes_down"]) for row in ours] == [
        (row["bytes_up"], row["bytes_down"]) for row in theirs
    ]
    assert ours[-1]["clients"] == theirs[-1]["clients"]
    assert ours[-1]["global"]["overall"] == theirs[-1]["global"]["overall"]
    assert not any(row["dropped"] for row in theirs)


@pytest.mark.parametrize("method", ["capt", "fedpurel", "fedcopl"])
def test_the_same_bits_as_in_one_process(method: str, there: Deployed, tmp_path: Path) -> None:
    there.run(method, method)
    same_as_local(there, method, method, tmp_path)
