"""Comparisons over axes: every row at every point, on one federation there."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

import fedtailor
from conftest import Call
from fedtailor.base.errors import UserError
from fedtailor.report.comparison import blocks, comparison_table, tuning_notes
from fedtailor.runs.callback import ComparisonCallback
from fedtailor.runs.comparison import Comparison
from fedtailor.runs.comparison_plan import load_plan, make_plan, read_values
from fedtailor.runs.folder import read_lines
from fedtailor.settings.run import read_toml
from run_content import read

OVER = {"data.alpha": [0.5, 5.0], "clients": [2, 3]}
POINTS = [
    "data.alpha-0.5-clients-2",
    "data.alpha-0.5-clients-3",
    "data.alpha-5.0-clients-2",
    "data.alpha-5.0-clients-3",
]


@pytest.fixture(scope="module")
def settings(small: dict[str, Any]) -> dict[str, Any]:
    return {**{key: value for key, value in small.items() if key not in ("clients", "data.alpha")}, "rounds": 1}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("axes") / "it"


@pytest.fixture(scope="module")
def made(settings: dict[str, Any], folder: Path) -> Comparison:
    return fedtailor.compare(["promptfl", "fedclip"], settings, seeds=2, out=folder, over=OVER, show="tail")


class Deaf(ComparisonCallback):
    def on_start(self, experiment: Any, zero_shot: Any, done: int) -> None:
        raise AssertionError(f"{experiment.run.method.name} was run")


def test_every_point(made: Comparison, settings: dict[str, Any], folder: Path) -> None:
    """Broken: a point lacks a row, has another's settings, or its runs are not what they are alone."""
    assert made.summary["axes"] == OVER
    assert [tuple(point["at"].values()) for point in made.summary["points"]] == [(0.5, 2), (0.5, 3), (5.0, 2), (5.0, 3)]
    for name, point, runs in zip(POINTS, made.summary["points"], made.points, strict=True):
        assert [row["title"] for row in point["rows"]] == ["zeroshot", "promptfl", "fedclip"]
        for row in point["rows"]:
            its = [folder / name / row["title"] / f"seed-{seed}" for seed in (0, 1)]
            for place, summary in zip(its, runs[row["title"]], strict=True):
                run = read_toml(place / "run.toml")
                assert [run.data.partition.options["alpha"], run.clients] == list(point["at"].values())
                assert read(place / "result.json") == summary
        cohorts = [
            [r["cohort"] for r in read_lines(folder / name / row / "seed-1" / "rounds.jsonl")]
            for row in ("promptfl", "fedclip")
        ]
        assert cohorts[0] == cohorts[1]
    alone = fedtailor.run("promptfl", {**settings, "data.alpha": 5.0, "clients": 3}, seed=1).summary
    assert alone["global"] == made.points[3]["promptfl"][1]["global"]
    assert "clients" not in made.summary["same"]
    assert read(folder / "table.json") == made.summary
    assert made.runs == made.points[0]


def test_gone_on(made: Comparison, settings: dict[str, Any], folder: Path) -> None:
    """Finished runs are read, whoever asks; other axes are another comparison."""
    again = fedtailor.compare(
        ["promptfl", "fedclip"], settings, seeds=2, out=folder, over=OVER, callback=Deaf(), show="tail"
    )
    assert again.summary == made.summary
    plan, shown = load_plan(folder)
    assert plan == make_plan(["promptfl", "fedclip"], settings, 2, OVER)
    assert shown.show == "tail"
    for other, message in (
        (
            {**OVER, "clients": [2, 4]},
            "it has --over=data.alpha=0.5,5.0 --over=clients=2,3, not --over=data.alpha=0.5,5.0 --over=clients=2,4",
        ),
        ({}, "it has --over=data.alpha=0.5,5.0 --over=clients=2,3, not none"),
    ):
        more = {} if other else {"data.alpha": 5.0, "clients": 2}
        with pytest.raises(UserError) as caught:
            fedtailor.compare(["promptfl", "fedclip"], {**settings, **more}, seeds=2, out=folder, over=other)
        assert message in str(caught.value)


def test_stopped_and_gone_on(made: Comparison, settings: dict[str, Any], tmp_path: Path) -> None:
    class Stopping(ComparisonCallback):
        left = 3

        def on_round(self, record: Any, rounds: int) -> None:
            self.left -= 1
            if self.left == 0:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fedtailor.compare(
            ["promptfl", "fedclip"], settings, seeds=2, out=tmp_path / "it", over=OVER, callback=Stopping()
        )
    assert len(list((tmp_path / "it").rglob("result.json"))) == 4  # of eight with zero-shot's, seed by seed
    again = fedtailor.compare(["promptfl", "fedclip"], settings, seeds=2, out=tmp_path / "it", over=OVER, jobs=2)
    means = [[[row[p] for p in ("global", "personal")] for row in point["rows"]] for point in again.summary["points"]]
    assert means == [[[row[p] for p in ("global", "personal")] for row in p["rows"]] for p in made.summary["points"]]


def test_tables(made: Comparison, folder: Path) -> None:
    """A block for each point of the first axis, a column for each of the last, of the one metric."""
    made_of = blocks(made.summary)
    assert [block.heading for block in made_of] == [
        f"{part} tail, data.alpha={alpha}, by clients" for part in ("global", "personal") for alpha in (0.5, 5.0)
    ]
    assert all(block.columns == ["2", "3"] for block in made_of)
    for (title, cells), row in zip(made_of[1].lines, made.summary["points"][2]["rows"], strict=True):
        assert title == row["title"]
        assert cells[0].text == f"{row['global']['tail']['mean']:.2f}±{row['global']['tail']['std']:.2f}"
    assert comparison_table(made.summary, differences=True)
    page = (folder / "table.md").read_text()
    assert "| differences to promptfl, personal, data.alpha=5.0, clients=3 |" in page
    assert "--over=data.alpha=0.5,5.0 --over=clients=2,3" in page
    lines = list(csv.DictReader((folder / "table.csv").read_text().splitlines()))
    assert len(lines) == 4 * 3 * (2 * 6 + 4)
    (line,) = (
        it
        for it in lines
        if (it["data.alpha"], it["clients"], it["row"], it["part"], it["metric"])
        == ("5.0", "2", "fedclip", "global", "mid")
    )
    assert float(line["mean"]) == made.summary["points"][2]["rows"][2]["global"]["mid"]["mean"]
    assert (line["against"], line["interval"], line["n"]) == ("promptfl", "pictures", "2")


def test_sorted_over_points(made: Comparison) -> None:
    """By the mean over all points, in both sections."""
    for block in blocks({**made.summary, "sort": "overall"}):
        part = block.heading.split()[0]
        mean = {
            title: sum(point["rows"][i][part]["overall"]["mean"] for point in made.summary["points"])
            for i, title in enumerate(("zeroshot", "promptfl", "fedclip"))
        }
        assert [title for title, _ in block.lines] == sorted(mean, key=lambda title: -mean[title])


def test_tuned_at_every_point(settings: dict[str, Any], tmp_path: Path) -> None:
    rest = {key: value for key, value in settings.items() if key != "lr"}
    over, grid = {"data.alpha": [0.5, 5.0]}, {"lr": [0.001, 0.1]}
    made = fedtailor.compare(["promptfl"], {**rest, "clients": 2}, out=tmp_path, over=over, tune=grid)
    for alpha, point in zip((0.5, 5.0), made.summary["points"], strict=True):
        here = tmp_path / f"data.alpha-{alpha}"
        scores = {}
        for lr in grid["lr"]:
            trial = here / "tune" / "promptfl" / f"lr-{lr}" / "seed-0"
            assert read_toml(trial / "run.toml").data.partition.options["alpha"] == alpha
            scores[lr] = read(trial / "result.json")["balanced"]["global"]
        best = max(scores, key=lambda lr: scores[lr])
        assert point["tuning"]["promptfl"]["chosen"] == {"lr": best}
        assert read_toml(here / "promptfl" / "seed-0" / "run.toml").local.lr == best
    assert f"Chosen on validation pictures, data.alpha=5.0: promptfl lr={best}" in "\n".join(tuning_notes(made.summary))


@pytest.mark.parametrize(
    ("word", "values"),
    [
        ("data.alpha=0.1,0.5", {"data.alpha": [0.1, 0.5]}),
        ("data=cifar10-lt, cifar100-lt", {"data.name": ["cifar10-lt", "cifar100-lt"]}),
        ("lr=1e-3,1", {"local.lr": [0.001, 1]}),
        ("local.betas=[0.9,0.99],[0.9,0.999]", {"local.betas": [[0.9, 0.99], [0.9, 0.999]]}),
        ("data.server=0.1,test", {"data.server": [0.1, "test"]}),
    ],
)
def test_values(word: str, values: dict[str, Any]) -> None:
    """A comma in brackets belongs to a list."""
    assert read_values([word], "--over") == values


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["promptfl", "--over", "data.alpha"], "--over data.alpha: write --over KEY=VALUE,VALUE"),
        (["promptfl", "--over", "data.alpha=0.1"], "--over data.alpha=[0.1]: give two values or more"),
        (["promptfl", "--over", "data.alpha=1,1"], "none of them twice"),
        (["promptfl", "--over", "lr=1,2", "--over", "local.lr=1,2"], "--over local.lr is given twice"),
        (["promptfl", "clients=3", "--over", "clients=2,3"], "clients is given twice; it is set, an axis"),
        (["promptfl", "--over", "seed=0,1"], "seed is no axis; give --seeds"),
        (["promptfl", "--over", "method=fedclip,capt"], "method is no axis; name the methods one by one"),
        (["promptfl", "--over", "data.alpa=1,2"], "unknown key 'data.alpa'"),
        (["promptfl:lr=0.1", "--over", "lr=1,2"], "promptfl lr=0.1 sets lr, which is an axis"),
        (["promptfl", "--over", "lr=1,2", "--tune", "lr=1,2"], "lr is given twice"),
        (["promptfl", "--show", "tail"], "--show tail: without --over the table shows every column"),
        (["promptfl", "--over", "clients=2,3", "--show", "tale"], "unknown show 'tale'; did you mean 'tail'"),
        (["promptfl", "--tune-by", "tail"], "goes with --tune KEY=VALUE,VALUE"),
        (["promptfl", "--tune", "clients=2,3"], "tune clients: it decides what is compared"),
        (["promptfl", "--tune", "lr=1,2", "--tune-seeds", "x"], "seeds=x: give how many"),
        (["promptfl", "--format", "html"], "unknown format 'html'"),
        (["--resume", "runs/x", "--over", "clients=2,3"], "--resume takes all settings from the comparison's folder"),
    ],
)
def test_mistakes(words: list[str], message: str, call: Call, tmp_path: Path) -> None:
    """Exit code 2, what is wrong, and no folder made."""
    answer = call("compare", *words)
    assert (answer.code, answer.out) == (2, "")
    assert message in answer.err
    assert list(tmp_path.iterdir()) == []


def test_the_command_line(settings: dict[str, Any], call: Call, tmp_path: Path) -> None:
    words = [f"{key}={value}" for key, value in settings.items() if key != "lr"]
    given = ["--over", "clients=2,3", "--tune", "lr=0.01,0.1", "--tune-by", "personal", "--validation", "0.3"]
    answer = call("compare", "promptfl", *words, *given, "--tune-rounds", "1", "--out", "it", "--json")
    assert (answer.code, answer.err) == (0, "")
    summary = json.loads(answer.out)
    assert summary["points"][0]["tuning"]["promptfl"]["by"] == "personal overall"
    assert "--over=clients=2,3 --tune=lr=0.01,0.1 --tune-by=personal" in summary["command"]
    assert "--validation=0.3" in summary["command"]
    trial = tmp_path / "it" / "clients-2" / "tune" / "promptfl" / "lr-0.01" / "seed-0" / "run.toml"
    assert read_toml(trial).data.validation == 0.3
    again = call("compare", "--resume", "it", "--format", "table", "--show", "tail")
    assert (again.code, again.err) == (0, "")
    assert "global tail, by clients" in again.out
    assert max(map(len, again.out.splitlines())) <= 100
