"""Records of a run call classes and clients by their names; records of another format are refused wherever they are
read."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import fedtailor
from conftest import CLASSES, Call
from fedtailor.report.figures import FIGURES
from fedtailor.runs.folder import RunFolder
from fedtailor.runs.format import FORMAT
from fedtailor.runs.records import read_runs
from remote import Fault, RemoteWorld, silent
from world import CLIENTS, world

SITES = ["Aachen", "Bonn", "Ulm"]
NAMES = [name.replace("_", " ") for name in sorted(CLASSES)]
PLACES = ["Aachen", "Bonn", "Köln", "Ulm"]


@pytest.fixture(scope="module")
def run(small: dict[str, Any], pictures: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One round of two of three sites, whose pictures lie in a folder by site."""
    root, folder = tmp_path_factory.mktemp("sites"), tmp_path_factory.mktemp("runs") / "run"
    for path in sorted(pictures.rglob("*.png")):
        part, label, name = path.parts[-3:]
        place = root / SITES[int(name[:2]) % 3] / part / label
        place.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, place)
    own = {"data": f"folder:{root}", "rounds": 1, "fraction": 0.67, "record": "clusters,labels", "labels": "zeroshot"}
    fedtailor.run("capt", {**{key: small[key] for key in ("backbone", "threads", "batch", "lr")}, **own}, out=folder)
    return folder


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_every_record_has_names(run: Path) -> None:
    """Broken: a number is left, and only data.json, or nothing, tells whose it is."""
    (row,) = lines(run / "rounds.jsonl")
    cohort, result, data = row["cohort"], json.loads((run / "result.json").read_text()), facts(run)
    (absent,) = set(SITES) - set(cohort)
    assert cohort == sorted(set(SITES) - {absent})
    assert result["never_took_part"] == [absent]
    assert list(row["clients"]) == data["clients"] == SITES
    assert all(list(row[part]["per_class"]) == NAMES for part in ("global", "personal"))
    assert all(list(data["zero_shot"][part]["per_class"]) == NAMES for part in ("global", "personal"))
    assert data["classes"] == NAMES
    assert sorted(name for members in data["groups"].values() for name in members) == NAMES
    assert {clustering: list(of) for clustering, of in row["diagnostics"]["clusters"].items()} == {
        "similar": cohort, "diverse": cohort,
    }  # fmt: skip
    assert list(row["diagnostics"]["labels"]["clients"]) == SITES
    steps = lines(run / "clients.jsonl")
    assert {step["client"] for step in steps if step["pass"] == "train"} == set(cohort)
    assert {step["client"] for step in steps} <= set(SITES)


def facts(run: Path) -> dict[str, Any]:
    return dict(json.loads((run / "data.json").read_text()))


def test_figures_find_the_names(run: Path) -> None:
    """Broken: a name is looked for among others than data.json's, and stands beside another's counts."""
    (row,), data = lines(run / "rounds.jsonl"), facts(run)
    cells = FIGURES["heatmap"].source.table(read_runs([run]))
    assert {cell["client"] for cell in cells} == set(row["cohort"])
    for cell in cells:
        assert cell["count"] == data["counts"][SITES.index(cell["client"])][NAMES.index(cell["name"])]


def test_who_never_took_part_is_named(run: Path, call: Call) -> None:
    """At the end of a run, in its JSON and on its page."""
    (absent,) = json.loads((run / "result.json").read_text())["never_took_part"]
    told = f"1 client(s) never took part ({absent})"
    again = shutil.copytree(run, "again")  # it is finished, and only tells again
    assert told in call("run", "--resume", str(again)).out
    assert json.loads(call("run", "--resume", str(again), "--json").out)["never_took_part"] == [absent]
    assert call("report", str(again), "--out", "page.html").code == 0
    assert told in Path("page.html").read_text()


def test_remote_clients_have_names(tmp_path: Path) -> None:
    """Broken: a server that knows its sites writes down their numbers."""
    built = world("fedavg", "text_prompt", fraction=1.0, **{"plan.quorum": 0.5})
    assert len(PLACES) == CLIENTS
    experiment = replace(built, federation=replace(built.federation, names=tuple(PLACES)))
    there = RemoteWorld(experiment, tmp_path / "sites", [Fault(silent, client=2, round=0)])
    store = RunFolder.create(tmp_path / "run", experiment.run, {})
    first, *_ = there.train(store)
    assert first.cohort == list(first.clients) == PLACES
    assert first.dropped == {"Köln": "late: no reply in time"}
    steps = [step for step in lines(store.folder / "clients.jsonl") if step["round"] == 1]
    assert {step["client"] for step in steps} == set(PLACES)
    assert [step["client"] for step in steps if step["dropped"]] == ["Köln"]


def test_attackers_are_named() -> None:
    """In the notes of result.json."""
    built = world("fedavg", "text_prompt", attack="flip-sign")
    experiment = replace(built, federation=replace(built.federation, names=tuple(PLACES)))
    (bad,) = experiment.job.bad
    assert experiment.notes[-1].endswith(f" by 1 of the clients: {PLACES[bad]}")


@pytest.mark.parametrize("words", [["plot"], ["report"], ["compare", "--runs"], ["run", "--resume"]])
def test_records_of_another_format(words: list[str], run: Path, call: Call) -> None:
    """Broken: a KeyError, or numbers under the wrong names."""
    old = shutil.copytree(run, Path("old"))
    toml = old / "run.toml"
    toml.write_text(toml.read_text().replace(f"format = {FORMAT}\n", "format = 2\n"))
    answer = call(*words, "old")
    assert answer.code == 2
    assert f"old has records in format 2, this fedtailor writes format {FORMAT} and reads no other" in answer.err
