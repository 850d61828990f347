"""Head, mid and tail are told only where there is a tail: in records, tables, cards and figures."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedtailor
from conftest import Call
from fedtailor.data.groups import find_groups, has_tail, profile
from fedtailor.evaluation.metrics import TAILED

PARTS = ("zero_shot", "global", "zero_shot_personal", "personal")


def without_tail(table: str) -> bool:
    return "overall" in table and not any(word in table.split() for word in TAILED)


@pytest.mark.parametrize(
    ("counts", "tail"),
    [
        ([48] * 7, False),
        ([48, 30, 17], False),  # below three to one
        ([48, 30, 16], True),
        ([48, 48, 0], False),  # a class without pictures is no rare one
        ([0, 0], False),
        (profile(5000, 10, 100).tolist(), True),
        (profile(5000, 10, 10).tolist(), True),  # the least tail of a paper
    ],
)
def test_what_a_tail_is(counts: list[int], tail: bool) -> None:
    """Broken: equal classes are called head and tail by their order, or a paper's long tail is none."""
    assert has_tail(np.array(counts)) is tail
    labels = np.repeat(np.arange(len(counts)), counts)
    for rule in ("capt", "fedloge", "fedpurel"):
        assert find_groups(rule, labels, len(counts)).some is tail


def test_without_labels_nothing_is_known() -> None:
    assert not find_groups("capt", None, 3).some


@pytest.fixture(scope="module")
def even(
    pictures: Path, small: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> tuple[dict[str, Any], Path]:
    """Settings on eight pictures of each colour, and a run of them."""
    root = tmp_path_factory.mktemp("even") / "dots"
    shutil.copytree(pictures, root)
    for folder in (root / "train").iterdir():
        for path in sorted(folder.iterdir())[8:]:
            path.unlink()
    settings = {**small, "data": f"folder:{root}", "data.min_size": 1, "rounds": 1}
    fedtailor.run("promptfl", settings, out=root.parent / "run")
    return settings, root.parent / "run"


def test_records_of_a_run(even: tuple[dict[str, Any], Path], call: Call) -> None:
    settings, run = even
    result = json.loads((run / "result.json").read_text())
    assert all(result[part][name] is None for part in PARTS for name in TAILED)
    assert all(result[part]["overall"] is not None for part in PARTS)
    assert json.loads((run / "data.json").read_text())["groups"] == {name: [] for name in TAILED}
    assert without_tail((run / "model/README.md").read_text().split("## Scores")[1].split("##")[0])
    assert without_tail(call("run", "--resume", str(run)).out)
    shown = call("data", "show", settings["data"], "clients=3", "data.min_size=1")
    assert "group" not in shown.out.split()
    assert "tail" not in shown.out
    counted = json.loads(call("data", "show", settings["data"], "clients=3", "data.min_size=1", "--json").out)
    assert counted["groups"] is None


def test_comparison(even: tuple[dict[str, Any], Path], call: Call) -> None:
    settings, _ = even
    words = [f"{key}={value}" for key, value in settings.items()]
    done = call("compare", "promptfl", "zeroshot", *words, "--against", "promptfl", "--out", "two")
    assert done.code == 0, done.err
    assert without_tail(done.out)
    table = json.loads(Path("two/table.json").read_text())
    assert all(row["global"][name] == {"mean": None, "std": None} for row in table["rows"] for name in TAILED)
    for ending in ("md", "tex"):
        assert without_tail(Path(f"two/table.{ending}").read_text())


def test_evaluation_and_figures(even: tuple[dict[str, Any], Path], call: Call) -> None:
    settings, run = even
    folder = settings["data"].removeprefix("folder:")
    assert without_tail(call("evaluate", str(run), folder).out)
    tuned = json.loads(call("evaluate", str(run), folder, "--json").out)["tuned"]
    assert [tuned[name] for name in TAILED] == [None] * 3
    assert call("plot", str(run), "--figure", "gains").code == 0
    drawn = next(Path().glob("**/gains.csv"), None) or next(run.glob("**/gains.csv"))
    assert {line.split(",")[2] for line in drawn.read_text().splitlines()[1:]} == {"overall"}
