"""Finished run folders, compared as they are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import fedtailor
from conftest import Call
from fedtailor.base.errors import UserError
from fedtailor.runs.finished import compare_finished


@pytest.fixture(scope="module")
def runs(small: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three rows; of promptfl there are two seeds."""
    folder, settings = tmp_path_factory.mktemp("runs"), {**small, "rounds": 1}
    fedtailor.run("promptfl", settings, out=folder / "one")
    fedtailor.run("promptfl", settings, seed=1, out=folder / "two")
    fedtailor.run("promptfl", {**settings, "tuner.length": 2}, out=folder / "long")
    fedtailor.run("fedclip", settings, out=folder / "clip")
    fedtailor.run("fedclip", {**settings, "data.alpha": 9.0}, out=folder / "other")
    fedtailor.run(
        "zeroshot", {key: v for key, v in settings.items() if key not in ("lr", "batch")}, out=folder / "zero"
    )
    return folder


def test_rows(runs: Path, tmp_path: Path) -> None:
    """Runs that differ in the seed are one row; what sets rows of a method apart is in their titles."""
    made = compare_finished([runs / name for name in ("one", "clip", "two", "long", "zero")], out=tmp_path / "it")
    rows = {row["title"]: row for row in made.summary["rows"]}
    assert list(rows) == ["zeroshot", "promptfl tuner.length=4", "fedclip", "promptfl tuner.length=2"]
    assert [row["seeds"] for row in rows.values()] == [[0], [0, 1], [0], [0]]
    found = [json.loads((runs / name / "result.json").read_text())["global"]["tail"] for name in ("one", "two")]
    assert rows["promptfl tuner.length=4"]["global"]["tail"]["mean"] == pytest.approx(sum(found) / 2, abs=1e-4)
    assert "unequal" not in made.summary
    its = made.summary["differences"]
    assert its["against"] == "promptfl tuner.length=4"
    assert its["rows"]["fedclip"]["interval"] == "pictures"
    assert its["rows"]["fedclip"]["seeds"] == [0]
    assert sorted(path.name for path in (tmp_path / "it").glob("table.*")) == [
        f"table.{e}" for e in ("csv", "json", "md", "tex")
    ]
    assert "n = 1 to 2 seeds" in (tmp_path / "it" / "table.md").read_text()


def test_other_federations(runs: Path) -> None:
    """Broken: runs of two federations look as if they could be compared, or are compared picture by picture."""
    made = compare_finished([runs / "one", runs / "clip", runs / "other"]).summary
    assert made["unequal"] == ["data.alpha"]
    assert "data.alpha" not in made["same"]
    titles = [row["title"] for row in made["rows"]]
    assert titles == ["promptfl data.alpha=1.0", "fedclip data.alpha=1.0", "fedclip data.alpha=9.0"]
    assert list(made["differences"]["rows"]) == ["fedclip data.alpha=1.0"]


def test_a_comparisons_folder(small: dict[str, Any], tmp_path: Path) -> None:
    """All its runs but those it chose values by; the table is the comparison's own."""
    settings = {key: value for key, value in small.items() if key != "lr"} | {"rounds": 1}
    made = fedtailor.compare(["promptfl", "fedclip"], settings, seeds=2, out=tmp_path, tune={"lr": [0.01, 0.1]}).summary
    again = compare_finished([tmp_path, tmp_path / "promptfl" / "seed-0"]).summary
    assert {row["title"] for row in again["rows"]} == {"zeroshot", "promptfl", "fedclip"}
    for row in again["rows"]:
        (its,) = (other for other in made["rows"] if other["title"] == row["title"])
        assert {**row, "settings": {}} == {**its, "settings": {}}
    with pytest.raises(UserError, match="has a table of its own; choose another --out"):
        compare_finished([tmp_path], out=tmp_path)


def test_the_command_line(runs: Path, call: Call) -> None:
    answer = call("compare", "--runs", str(runs / "one"), str(runs / "clip"), "--against", "promptfl")
    assert (answer.code, answer.err) == (0, "")
    assert "differences to promptfl, personal" in answer.out
    assert not Path("runs").exists()


def test_mistakes(runs: Path, call: Call, tmp_path: Path) -> None:
    for words, message in (
        ([], "no folder is named"),
        (["nowhere"], "nowhere is no run folder, nor is there one in it"),
        ([str(runs / "one"), "--over", "clients=1,2"], "--runs compares finished runs as they are"),
        ([str(runs / "one"), "--against", "fedclip"], "unknown row 'fedclip'"),
    ):
        answer = call("compare", "--runs", *words)
        assert (answer.code, answer.out) == (2, "")
        assert message in answer.err
    twin = tmp_path / "twin"
    twin.mkdir()
    for name in ("run.toml", "result.json"):
        (twin / name).write_bytes((runs / "one" / name).read_bytes())
    with pytest.raises(UserError, match=r"one and .*twin are the same run; leave one of them out"):
        compare_finished([runs / "one", twin])
    (twin / "result.json").write_text("{")
    with pytest.raises(UserError, match="is damaged"):
        compare_finished([twin])
    (twin / "result.json").unlink()
    with pytest.raises(UserError, match="is not finished; go on with it: fedtailor run --resume"):
        compare_finished([twin])
