"""engine=flower: the same numbers and states by Flower's simulation as in one process, and after a stop."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from deployed import SITES, write_data

import fedtailor
from fedtailor.base.errors import UserError
from fedtailor.client.codec import client_to_bytes
from fedtailor.remote.client import StateFiles
from fedtailor.runs.execute import train
from fedtailor.runs.folder import RunFolder
from fedtailor.runs.server_bytes import server_to_bytes
from fedtailor.settings.run import make_run
from fedtailor.simulation.build import build

ray = [pytest.mark.flower, pytest.mark.filterwarnings("default")]  # Ray's own are its own


def settings(data: Path, **more: Any) -> dict[str, Any]:
    small = {"rounds": 3, "every": 1, "epochs": 1, "batch": 8, "threads": 1, "clients": SITES, "fraction": 0.7}
    return {"data": f"csv:{data / 'sites.csv'}", "data.partition": "site", **small, **more}


def rows(folder: Path) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if k not in ("seconds", "peak_rss_mb", "untuned")} for row in found]


@pytest.mark.parametrize("method", [pytest.param(name, marks=ray) for name in ("capt", "fedpurel", "fedcopl")])
def test_the_simulation_equals_one_process(method: str, tmp_path: Path) -> None:
    data = write_data(tmp_path / "data")
    here = fedtailor.run(method, settings(data), out=tmp_path / "here")
    there = fedtailor.run(method, settings(data, engine="flower"), out=tmp_path / "there")
    assert rows(tmp_path / "here") == rows(tmp_path / "there")
    ours, theirs = RunFolder(tmp_path / "here").resume(), RunFolder(tmp_path / "there").resume()
    assert ours is not None
    assert theirs is not None
    assert server_to_bytes(ours[0]) == server_to_bytes(theirs[0])
    run = (tmp_path / "there" / "id").read_text()
    for k, client in ours[1].items():
        state = StateFiles(tmp_path / "there" / "clients" / f"client-{k}" / run).read(
            theirs[1][k].version, theirs[1][k].state_id
        )
        assert client_to_bytes(replace(state, state_id="")) == client_to_bytes(client)
    for name in ("zero_shot", "zero_shot_personal", "global", "personal", "pseudo_labels", "bytes_up", "bytes_down"):
        assert here.summary[name] == there.summary[name]


@pytest.mark.flower
@pytest.mark.filterwarnings("default")
def test_a_simulation_goes_on_after_a_stop(tmp_path: Path) -> None:
    data = write_data(tmp_path / "data")
    fedtailor.run("promptfl", settings(data), out=tmp_path / "here")
    run = make_run("promptfl", settings(data, engine="flower"))
    experiment = build(run)
    store = RunFolder.create(tmp_path / "there", run, fedtailor.runs.execute.about(experiment))
    next(train(experiment, store))  # one round, and then no more is asked for
    store.close()
    fedtailor.runs.execute.resume(tmp_path / "there")
    assert rows(tmp_path / "here") == rows(tmp_path / "there")


def test_what_cannot_be_elsewhere_is_refused() -> None:
    with pytest.raises(UserError, match="gathers everyone's pictures in one place"):
        make_run("central", {"engine": "flower"})
    with pytest.raises(UserError, match="record looks into clients"):
        make_run("promptfl", {"engine": "flower", "record": "drift"})
