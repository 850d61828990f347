"""Comparisons: the same federation for every row, sums over seeds, marks, and going on after a kill."""

from __future__ import annotations

import json
import re
import signal
import statistics
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from filelock import FileLock
from rich.console import Console

import fedtailor
from fedtailor.base.documents import json_object, sealed
from fedtailor.base.errors import UserError
from fedtailor.base.rng import generator
from fedtailor.cli import main
from fedtailor.cli.progress import Comparing
from fedtailor.evaluation.metrics import METRICS
from fedtailor.methods import METHODS
from fedtailor.report.comparison import caption, comparison_table, marks, section
from fedtailor.report.comparison_formats import markdown
from fedtailor.runs import many
from fedtailor.runs.callback import ComparisonCallback
from fedtailor.runs.comparison import Comparison
from fedtailor.runs.comparison_plan import ComparisonPlan, load_plan
from fedtailor.runs.comparison_spec import (
    ComparisonSpec,
    every_method,
    make_spec,
    parse_row,
    read_seeds,
    split_words,
)
from fedtailor.runs.comparison_summary import spread
from fedtailor.runs.folder import RunFolder
from fedtailor.simulation.build import Experiment, build
from run_content import read

ROWS = ["promptfl", "promptprox:method.mu=0.7", "fedclip"]
TITLES = ["zeroshot", "promptfl", "promptprox method.mu=0.7", "fedclip"]
TIMES = {"seconds", "peak_rss_mb", "run_dir"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("straight") / "it"


@pytest.fixture(scope="module")
def made(small: dict[str, Any], folder: Path) -> Comparison:
    """A comparison that nobody stopped: four rows, two seeds."""
    return fedtailor.compare(ROWS, small, seeds=2, out=folder)


def result(folder: Path, row: str, seed: int) -> dict[str, Any]:
    return dict(read(folder / row / f"seed-{seed}" / "result.json"))


def untimed(made: Comparison) -> dict[str, Any]:
    return {title: [{k: v for k, v in s.items() if k not in TIMES} for s in runs] for title, runs in made.runs.items()}


# --- words ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("word", "name", "own"),
    [
        ("promptfl", "promptfl", {}),
        ("promptfl:engine=posted,rounds=20", "promptfl", {"engine": "posted", "rounds": 20}),
        ("fedprox:method.mu=0.1,lr=1e-2", "fedprox", {"method.mu": 0.1, "local.lr": 0.01}),
        ("clip-lora:local.betas=[0.9, 0.99],lr=0.1", "clip-lora", {"local.betas": [0.9, 0.99], "local.lr": 0.1}),
        ("fedavg:local.betas=[0.9,0.99]", "fedavg", {"local.betas": [0.9, 0.99]}),
        ("promptfl:tuner.words=a photo, of a,lr=1", "promptfl", {"tuner.words": "a photo, of a", "local.lr": 1}),
        ("fedavg:data=folder:x,tuner=lora", "fedavg", {"data.name": "folder:x", "tuner.name": "lora"}),
    ],
)
def test_a_row_with_its_own_settings(word: str, name: str, own: dict[str, Any]) -> None:
    """After the colon; a comma separates two settings only where a key follows."""
    assert parse_row(word) == (name, own)
    assert parse_row((name, own)) == (name, own)


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("promptfl:rounds", "promptfl:rounds: 'rounds' is not key=value"),
        ("promptfl:", "promptfl:: '' is not key=value"),
        ("promptfl:lr=1,lr=2", "lr is given twice"),
        ("promptfl:seed=1", "promptfl: seed cannot be set for one row alone"),
        ("promptfl:seeds=2", "promptfl: seeds cannot be set for one row alone"),
        ("promptfl:method=fedclip", "promptfl: method.name cannot be set for one row alone"),
    ],
)
def test_a_row_that_is_wrong(word: str, message: str) -> None:
    with pytest.raises(UserError) as caught:
        parse_row(word)
    assert message in str(caught.value)


def test_which_words_are_rows() -> None:
    """Plain ones, and those with a colon before any `=`; they may stand anywhere."""
    words = ["a", "data=folder:x", "b:lr=1,data=folder:y", "rounds=3", "c"]
    assert split_words(words) == (["a", "b:lr=1,data=folder:y", "c"], {"data.name": "folder:x", "rounds": 3})


@pytest.mark.parametrize(
    ("given", "seeds"),
    [
        (1, (0,)),
        (3, (0, 1, 2)),
        ("3", (0, 1, 2)),
        ("5,7", (5, 7)),
        ([7, 5], (7, 5)),
        ("5,", (5,)),
        (range(4, 6), (4, 5)),
    ],
)
def test_seeds(given: Any, seeds: tuple[int, ...]) -> None:
    """A number says how many, a list says which."""
    assert read_seeds(given) == seeds


@pytest.mark.parametrize("given", [0, "0", -1, "x", "1,x", "2,2", [], [-1], [True], True, 2.0, "2.0", [1.5], "1;2", ""])
def test_seeds_that_are_none(given: Any) -> None:
    with pytest.raises(UserError, match="give how many"):
        read_seeds(given)


@pytest.mark.parametrize(
    ("settings", "seeds", "expected"),
    [({}, None, (0,)), ({"seed": 4}, None, (4,)), ({"seeds": 2}, None, (0, 1)), ({"seeds": "5,7"}, None, (5, 7))],
)
def test_seeds_among_the_settings(settings: dict[str, Any], seeds: Any, expected: tuple[int, ...]) -> None:
    spec = make_spec(["promptfl"], settings, seeds)
    assert spec.seeds == expected
    assert spec.settings == {}


@pytest.mark.parametrize(
    ("settings", "seeds"), [({"seed": 4}, 2), ({"seeds": 3}, "2"), ({"seed": 4, "seeds": 1}, None)]
)
def test_seeds_given_twice(settings: dict[str, Any], seeds: Any) -> None:
    with pytest.raises(UserError, match="the seeds are given twice"):
        make_spec(["promptfl"], settings, seeds)


# --- what is compared -----------------------------------------------------------------------------------------------


def test_rows() -> None:
    """Zero-shot first, once; the rest in order, titled by their own settings, each in a folder of its own."""
    spec = make_spec(["promptfl", "zeroshot", "promptfl:lr=0.1", "zeroshot", "promptfl:lr=0.1,tuner.length=2"], {})
    titles = ["zeroshot", "promptfl", "promptfl lr=0.1", "promptfl lr=0.1 tuner.length=2"]
    assert [row.title for row in spec.rows] == titles
    assert spec.folders == ["zeroshot", "promptfl", "promptfl-lr-0.1", "promptfl-lr-0.1-tuner.length-2"]
    assert [row.run.local.lr for row in spec.rows[1:]] == [0.001, 0.1, 0.1]
    assert [row.run.tuner.name for row in spec.rows] == ["none", *["text_prompt"] * 3]
    assert [place.as_posix() for *_, place in replace(spec, seeds=(3, 5)).runs()] == [
        f"{name}/seed-{seed}" for seed in (3, 5) for name in spec.folders
    ]


def test_folders_differ_where_titles_do() -> None:
    """Titles that become the same name, or that are very long."""
    words = ["promptfl:tuner.words=a b", "promptfl:tuner.words=a-b", f"promptfl:tuner.words={'long ' * 60}"]
    names = make_spec(words, {}).folders
    assert names[1:3] == ["promptfl-tuner.words-a-b", "promptfl-tuner.words-a-b--2"]
    assert all(len(name) < 90 for name in names)


def test_zero_shot_stands_on_the_others_federation() -> None:
    """Settings for all that it has no use for do not trouble it: a tuner, a preset, a rate."""
    first, *others = make_spec(["fedavg", "fedprox"], {"tuner": "lora", "tuner.rank": 2, "lr": 0.1, "clients": 7}).rows
    assert (first.run.tuner.name, first.run.clients, first.run.rounds) == ("none", 7, 0)
    assert [row.run.tuner.options["rank"] for row in others] == [2, 2]
    first, *others = make_spec(["promptfl"], {"preset": "fedcopl"}).rows
    assert (first.run.clients, first.run.fraction) == (10, 1.0)
    assert make_spec(["zeroshot"], {"clients": 3}).rows[0].run.clients == 3
    with pytest.raises(UserError, match="zeroshot: zeroshot is a fixed combination with tuner none"):
        make_spec(["zeroshot"], {"tuner": "lora"})


@pytest.mark.parametrize(
    ("methods", "message"),
    [
        (["promptfl", "fedclip:rounds=7"], "rounds: 40 in promptfl, 7 in fedclip rounds=7;"),
        (["promptfl:clients=7", "fedclip"], "clients: 7 in promptfl clients=7, 20 in fedclip;"),
        (["promptfl", "fedclip:fraction=1.0"], "fraction: 0.4 in promptfl, 1.0 in fedclip"),
        (["promptfl", "fedclip:every=2"], "every: 10 in promptfl, 2 in"),
        (["promptfl", "fedclip:threads=9"], "threads: "),
        (["promptfl", "fedclip:data=drawn"], "data: drawn-lt in promptfl, drawn in fedclip data=drawn"),
        (["promptfl", "fedclip:data.alpha=0.5"], "data.alpha: 0.1 in promptfl, 0.5 in"),
        (["promptfl", "fedclip:data.partition=iid"], "data.partition: dirichlet in promptfl, iid in"),
        (["promptfl", "fedclip:data.seed=2"], "data.seed: 1 in promptfl, 2 in"),
        (["promptfl", "fedclip:backbone=owner/clip"], "backbone: bundled in promptfl, owner/clip in"),
        (["promptfl", "fedclip:backbone.precision=bf16"], "backbone.precision: fp32 in promptfl, bf16 in"),
        (["zeroshot:clients=3"], "clients: 20 in zeroshot, 3 in zeroshot clients=3"),
    ],
)
def test_rows_that_differ_where_they_must_not(methods: list[str], message: str) -> None:
    """The key, the values, the rows, and what to do."""
    with pytest.raises(UserError) as caught:
        make_spec(methods, {})
    key = message.partition(":")[0]
    assert f"the rows differ in {message}" in str(caught.value)
    assert str(caught.value).endswith(f"it must be equal, so give {key}=… once, for all")


def test_a_methods_own_settings_may_differ_from_anothers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A method with other numbers of clients and rounds is an error that names them, unless they are given for all."""
    monkeypatch.setitem(METHODS, "fedclip", replace(METHODS["fedclip"], settings={"rounds": 5, "clients": 8}))
    with pytest.raises(UserError, match="differ in rounds: 40 in promptfl, 5 in fedclip"):
        make_spec(["promptfl", "fedclip"], {})
    with pytest.raises(UserError, match="differ in clients: 20 in promptfl, 8 in fedclip"):
        make_spec(["promptfl", "fedclip"], {"rounds": 5})
    assert len(make_spec(["promptfl", "fedclip"], {"rounds": 5, "clients": 8}).rows) == 3


@pytest.mark.parametrize(
    ("methods", "settings", "message"),
    [
        ([], {}, "no method is named"),
        (["fedprx"], {}, "unknown method 'fedprx'; did you mean 'fedprox'? (fedtailor list methods)"),
        (["promptfl", "fedclip"], {"tuner.length": 8}, "fedclip: unknown key 'tuner.length'"),
        (["promptfl", "fedclip"], {"tuner.length": 8}, "stands with them, METHOD:key=value"),
        (["promptfl:lr=no"], {}, "promptfl lr=no: local.lr: input should be"),
        (["promptfl", "promptfl"], {}, "'promptfl' and 'promptfl' are the same"),
        (["promptfl", "promptfl:tuner.length=4"], {}, "'promptfl tuner.length=4' and 'promptfl' are the same"),
        (["promptfl:tuner.words=/a/b", "promptfl:tuner.words=/c/b"], {}, "are the same; leave one of them out"),
        (["zeroshot:rounds=9"], {}, "are the same; leave one of them out"),
    ],
)
def test_mistakes(methods: list[str], settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as caught:
        make_spec(methods, settings)
    assert message in str(caught.value)


def test_the_same_federation_cohorts_and_first_parameters(small: dict[str, Any]) -> None:
    """Rows of one seed have one deal, one cohort a round and, with one tuner, one start, bit for bit; seeds do not."""
    spec = make_spec(ROWS, small, 2)
    setups = {(row.method, run.seed): build(run) for row, run, _ in spec.runs()}

    def shares(experiment: Experiment) -> list[Any]:
        return [(share.train.tolist(), share.test.tolist()) for share in experiment.federation.shares]

    def cohorts(experiment: Experiment) -> list[list[int]]:
        run, method = experiment.run, experiment.job.method
        return [method.cohort(t, run.clients, run.fraction, generator(run.seed, "cohort", t)) for t in range(20)]

    for seed in (0, 1):
        mine = [setups[row.method, seed] for row in spec.rows]
        assert all(shares(experiment) == shares(mine[0]) for experiment in mine)
        assert all(cohorts(experiment) == cohorts(mine[0]) for experiment in mine)
        first, second = setups["promptfl", seed].job.start, setups["promptprox", seed].job.start
        assert first.keys() == second.keys()
        assert all(torch.equal(first[name], second[name]) for name in first)
    assert shares(setups["promptfl", 0]) != shares(setups["promptfl", 1])
    assert cohorts(setups["promptfl", 0]) != cohorts(setups["promptfl", 1])
    starts = [setups["promptfl", seed].job.start["text.ctx"] for seed in (0, 1)]
    assert not torch.equal(*starts)


# --- what comes out -------------------------------------------------------------------------------------------------


def test_summary(made: Comparison, folder: Path) -> None:
    """The object that scripts read: every key, means and sample deviations of what the run folders hold."""
    s = made.summary
    about = {"seeds", "number", "sort", "same", "notes", "command", "date", "versions", "folder"}
    assert set(s) == {"rows", "differences", *about}
    assert (s["seeds"], s["number"], s["folder"]) == ([0, 1], "last", str(folder))
    assert [row["title"] for row in s["rows"]] == TITLES
    for row, name in zip(s["rows"], ("zeroshot", "promptfl", "promptprox-method.mu-0.7", "fedclip"), strict=True):
        assert set(row) == {
            "method", "title", "tuner", "labels", "settings", "rounds", "seeds", "global", "personal", "worst_client",
            "bytes_up", "bytes_down", "seconds",
        }  # fmt: skip
        assert (row["method"], row["seeds"], row["labels"]) == (row["title"].split()[0], [0, 1], "given")
        runs = [result(folder, name, seed) for seed in (0, 1)]
        for part in ("global", "personal"):
            assert set(row[part]) == set(METRICS)
            for number in METRICS:
                a, b = (run[part][number] for run in runs)
                assert row[part][number]["mean"] == pytest.approx((a + b) / 2, abs=1e-4)
                assert row[part][number]["std"] == pytest.approx(abs(a - b) / 2**0.5, abs=1e-4)  # n − 1 = 1
        for number in ("worst_client", "bytes_up", "bytes_down", "seconds"):
            assert row[number]["mean"] == pytest.approx(statistics.mean(run[number] for run in runs), abs=1e-4)
    assert s["rows"][2]["settings"] == {"method.mu": 0.7}
    assert [row["tuner"] for row in s["rows"]] == ["none", "text_prompt", "text_prompt", "adapter"]
    assert [row["rounds"] for row in s["rows"]] == [0, 3, 3, 3]
    assert read(folder / "table.json") == s


def test_cohorts_of_the_runs(made: Comparison, folder: Path) -> None:
    """What was run had the same cohorts, too."""
    for seed in (0, 1):
        logs = [folder / name / f"seed-{seed}" / "rounds.jsonl" for name in ("promptfl", "fedclip")]
        first, second = ([json.loads(line)["cohort"] for line in log.read_text().splitlines()] for log in logs)
        assert first == second
        assert len(first) == 3


def test_a_comparison_changes_no_number(made: Comparison, small: dict[str, Any]) -> None:
    """A row's run is the run that it is alone."""
    alone = fedtailor.run("promptprox", {"method.mu": 0.7}, seed=1, **small).summary
    assert {k: v for k, v in alone.items() if k not in TIMES} == untimed(made)["promptprox method.mu=0.7"][1]


def test_without_a_folder(
    small: dict[str, Any], made: Comparison, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is written, and the numbers are the same."""
    monkeypatch.chdir(tmp_path)
    kept = fedtailor.compare(["zeroshot", ("promptfl", {})], small)
    assert list(tmp_path.iterdir()) == []
    assert kept.summary["folder"] is kept.folder is None
    assert untimed(kept)["promptfl"] == untimed(made)["promptfl"][:1]
    assert kept.summary["rows"][1]["global"]["overall"]["std"] is None


def test_markdown(made: Comparison, folder: Path, pictures: Path) -> None:
    """A page with how it came about, as it was given, and a table a section. Broken: another path than was given."""
    page = (folder / "table.md").read_text()
    lines = page.splitlines()
    command = f"fedtailor compare zeroshot promptfl promptprox:method.mu=0.7 fedclip data=folder:{pictures} backbone="
    assert any(command in line and "--seeds=2" in line and made.summary["date"] in line for line in lines)
    for word in (
        f"fedtailor {fedtailor.__version__}",
        f"torch {torch.__version__}",
        "seeds 0, 1",
        "clients=3",
        "n = 2",
    ):
        assert word in page
    assert any("and for every row" in line and f"data=folder:{pictures} " in line for line in lines)
    assert sum(line.startswith("| promptfl |") for line in lines) == 3
    tables = [line for line in lines if line.startswith("|")]
    assert {line.count("|") for line in tables[:12]} == {7}
    assert {line.count("|") for line in tables[12:18]} == {5}
    assert tables[18].startswith("| differences to promptfl, global | overall |")
    assert "±" in tables[2]


def invented(*means: float | None) -> dict[str, Any]:
    """A summary with one row for each mean, the same in every column."""

    def row(i: int, mean: float | None) -> dict[str, Any]:
        numbers = {name: {"mean": mean, "std": None} for name in METRICS}
        cost = {"mean": 3000.0, "std": None}
        costs = {"bytes_up": cost, "bytes_down": cost, "seconds": cost, "rounds": 3}
        about = {"title": f"row{i}", "labels": "given", "seeds": [4]}
        return {**about, "global": numbers, "personal": numbers, **costs}

    rows = [row(i, mean) for i, mean in enumerate(means)]
    versions: dict[str, str] = {}
    about = {"command": "", "date": "", "versions": versions, "same": {"data": "x"}}
    return {"rows": rows, "differences": None, "seeds": [4], "number": "last", **about}


@pytest.mark.parametrize(
    ("means", "expected"),
    [
        ([1.0, 3.0, 2.0], ["", "best", "second"]),
        ([3.0, 3.0, 2.0, 1.0], ["best", "best", "second", ""]),
        ([3.0, 2.0, 2.0, 1.0], ["best", "second", "second", ""]),
        ([2.004, 2.0, 1.0], ["best", "best", "second"]),  # as shown: 2.00 and 2.00
        ([None, 1.0, None], ["", "best", ""]),
        ([None, None], ["", ""]),
        ([2.0], ["best"]),
        ([9.0, 10.0], ["second", "best"]),  # as numbers, not as text
    ],
)
def test_marks(means: list[float | None], expected: list[str]) -> None:
    """Best and second of a column; what looks equal shares a mark, what is not there has none."""
    assert marks(means) == expected


def test_marks_in_markdown_and_on_the_terminal() -> None:
    """Bold and underlined in both; costs carry no mark."""
    summary = invented(1.0, 3.0, 2.0, None)
    table = [line for line in markdown(summary).splitlines() if line.startswith("| row")]
    assert table[0] == "| row0 | 1.00 | 1.00 | 1.00 | 1.00 | 1.00 |"
    assert table[1] == "| row1 | **3.00** | **3.00** | **3.00** | **3.00** | **3.00** |"
    assert table[2] == "| row2 | <u>2.00</u> | <u>2.00</u> | <u>2.00</u> | <u>2.00</u> | <u>2.00</u> |"
    assert table[3] == "| row3 | – | – | – | – | – |"
    assert table[8] == "| row0 | 1.0 kB | 1.0 kB | 3000.0 |"
    console = Console(force_terminal=True, width=80, color_system="standard")
    with console.capture() as capture:
        console.print(comparison_table(summary))
    shown = capture.get().splitlines()
    assert sum("\x1b[1m3.00\x1b[0m" in line for line in shown) == 2
    assert sum("\x1b[4m2.00\x1b[0m" in line for line in shown) == 2
    assert not any("\x1b" in line for line in shown if line.startswith(("row0", "row3")))


@pytest.mark.parametrize(
    ("number", "message"), [("last", "after the last round"), ("last10", "last ten"), ("best", "the test set chose")]
)
def test_captions(number: str, message: str) -> None:
    """Which number it is; that `best` was chosen by the test set; how many seeds."""
    summary = {**invented(1.0), "number": number}
    assert message in caption(summary)
    assert "one seed (4)" in caption(summary)
    three = [{**row, "seeds": [0, 1, 2]} for row in summary["rows"]]
    assert "sample standard deviation over n = 3 seeds" in caption({**summary, "rows": three, "seeds": [0, 1, 2]})
    mixed = [*three, *summary["rows"]]
    assert "sample standard deviation over n = 1 to 3 seeds" in caption({**summary, "rows": mixed, "seeds": [0, 1, 2]})
    assert caption(summary) in markdown(summary)
    assert "without" not in caption(summary)
    summary["rows"].append({**summary["rows"][0], "title": "fedcopl", "labels": "copl"})
    assert caption(summary).endswith("; trained without the data's labels: fedcopl (copl)")


def test_numbers(made: Comparison, small: dict[str, Any], folder: Path) -> None:
    """`last10` and `best` are the runs' own; zero-shot has one number only. Nothing is run for it."""
    for number in ("last10", "best"):
        other = fedtailor.compare(ROWS, small, seeds=2, out=folder, number=number, callback=Deaf())
        zero, prompt, *_ = other.summary["rows"]
        assert other.summary["number"] == number
        assert zero["global"] == made.summary["rows"][0]["global"]
        values = [result(folder, "promptfl", seed)[number]["personal"]["tail"] for seed in (0, 1)]
        assert prompt["personal"]["tail"] == spread(values)
        assert load_plan(folder)[1].number == number
    fedtailor.compare(ROWS, small, seeds=2, out=folder, callback=Deaf())
    with pytest.raises(UserError, match="unknown number 'lst'; did you mean 'last'"):
        fedtailor.compare(ROWS, small, number="lst")


def test_spread() -> None:
    """statistics.stdev([1, 2, 4]) = 1.5275; seeds that have no number are left out."""
    assert spread([1.0, 2.0, 4.0]) == {"mean": 2.3333, "std": 1.5275}
    assert spread([1.0, None]) == {"mean": 1.0, "std": None}
    assert spread([None, None]) == {"mean": None, "std": None}


# --- going on -------------------------------------------------------------------------------------------------------


class Deaf(ComparisonCallback):
    """Fails if anything is run."""

    def on_start(self, experiment: Any, zero_shot: Any, done: int) -> None:
        raise AssertionError(f"{experiment.run.method.name} was run")


class Listening(ComparisonCallback):
    """Notes what is run, and stops after so many rounds."""

    def __init__(self, stop: int = -1) -> None:
        self.heard: list[str] = []
        self.begun: list[str] = []
        self.stop = stop

    def on_run(self, title: str, seed: int, done: int, total: int) -> None:
        self.heard.append(f"{done}/{total} {title}, {seed}")

    def on_start(self, experiment: Experiment, zero_shot: Any, done: int) -> None:
        self.begun.append(f"{experiment.run.method.name} {experiment.run.seed}")

    def on_round(self, record: Any, rounds: int) -> None:
        self.begun.append(f"round {record.round}")
        self.stop -= 1
        if self.stop == 0:
            raise KeyboardInterrupt


def test_stopped_and_gone_on(small: dict[str, Any], made: Comparison, tmp_path: Path) -> None:
    """Finished runs are read, the stopped one goes on from its checkpoint, the rest are begun; the numbers agree."""
    with pytest.raises(KeyboardInterrupt):
        fedtailor.compare(ROWS, small, seeds=2, out=tmp_path / "it", callback=Listening(stop=5))
    assert not (tmp_path / "it" / "table.md").exists()
    callback = Listening()
    again = fedtailor.compare(ROWS, small, seeds=2, out=tmp_path / "it", callback=callback)
    rounds = ["round 1", "round 2", "round 3"]
    assert callback.begun == [
        "promptprox 0", "round 3", "fedclip 0", *rounds, "zeroshot 1", "promptfl 1", *rounds, "promptprox 1", *rounds,
        "fedclip 1", *rounds,
    ]  # fmt: skip
    assert callback.heard == [f"{i}/8 {TITLES[i % 4]}, {i // 4}" for i in range(8)]
    assert untimed(again) == untimed(made)


def test_a_result_that_is_gone(small: dict[str, Any], made: Comparison, folder: Path) -> None:
    """Only that run goes on, and comes to the same."""
    (folder / "fedclip" / "seed-1" / "result.json").unlink()
    callback = Listening()
    again = fedtailor.compare(ROWS, small, seeds=2, out=folder, callback=callback)
    assert callback.begun == ["fedclip 1"]
    assert untimed(again) == untimed(made)


def test_more_seeds(small: dict[str, Any], tmp_path: Path) -> None:
    """A finished comparison takes more seeds; what there is is not run again."""
    settings = {**small, "rounds": 1}
    fedtailor.compare(["promptfl"], settings, out=tmp_path)
    callback = Listening()
    more = fedtailor.compare(["promptfl"], settings, seeds=2, out=tmp_path, callback=callback)
    assert callback.begun == ["zeroshot 1", "promptfl 1", "round 1"]
    assert more.summary["rows"][1]["seeds"] == [0, 1]


# Runs a comparison for each moment in a process of its own, which kills itself then, as in test_resume.py.
KILLER = """
import json, os, signal, sys
from pathlib import Path

import torch
import fedtailor
import sklearn.metrics
from fedtailor.runs import comparison, execute, predictions, folder as run_folder

torch.optim.SGD([torch.zeros(1, requires_grad=True)], 0.1)

def die():
    os.kill(os.getpid(), signal.SIGKILL)

def arm(moment):
    name, when, nth = moment.split()
    seen, write = [], run_folder.write_atomic

    def new_write(path, data):
        if path.name == name:
            seen.append(path)
        due = path.name == name and len(seen) == int(nth)
        if due and when == "within":
            path.with_name(name + ".part").write_bytes(data[: len(data) // 2])
        if due and when in {"within", "before"}:
            die()
        write(path, data)
        if due:
            die()

    for module in (run_folder, execute, comparison, predictions):
        module.write_atomic = new_write

settings, folder, moments = json.loads(sys.argv[1]), Path(sys.argv[2]), json.loads(sys.argv[3])
ends = {}
for moment in moments:
    child = os.fork()
    if child == 0:
        arm(moment)
        fedtailor.compare(["promptfl", "fedclip"], settings, out=folder / moment)
        os._exit(0)
    ends[moment] = os.waitpid(child, 0)[1]
print(json.dumps(ends))
"""

MOMENTS = [
    "compare.json within 1",
    "compare.json after 1",
    "run.toml before 2",
    "checkpoint.json after 4",
    "predictions.safetensors after 2",
    "result.json before 2",
    "result.json after 2",
    "table.json before 1",
    "table.md within 1",
]


@pytest.fixture(scope="module")
def killed(small: dict[str, Any], made: Comparison, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Comparisons that were killed, one for each moment. (After `made`, so that the images are encoded.)"""
    folder = tmp_path_factory.mktemp("killed")
    words = [sys.executable, "-c", KILLER, json.dumps(small), str(folder), json.dumps(MOMENTS)]
    done = subprocess.run(words, check=True, capture_output=True, text=True, timeout=240)
    assert json.loads(done.stdout) == dict.fromkeys(MOMENTS, signal.SIGKILL), done.stderr
    return folder


@pytest.mark.parametrize("moment", MOMENTS)
def test_killed_and_gone_on(moment: str, killed: Path, small: dict[str, Any], made: Comparison) -> None:
    """kill -9 at any moment, then the same command: finished runs are not run again, and the numbers agree."""
    folder, callback = killed / moment, Listening()
    finished = len(list(folder.rglob("result.json")))
    assert not (folder / "table.md").exists()
    again = fedtailor.compare(["promptfl", "fedclip"], small, out=folder, callback=callback)
    assert len([line for line in callback.begun if not line.startswith("round")]) == 3 - finished
    straight = untimed(made)
    assert untimed(again) == {title: straight[title][:1] for title in ("zeroshot", "promptfl", "fedclip")}
    assert (folder / "table.md").is_file()
    assert not list(folder.rglob("*.part")), "what was written aside is moved or overwritten"


# --- refusals -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("methods", "change", "seeds", "message"),
    [
        (ROWS[:2], {}, 2, "its rows are zeroshot, promptfl, promptprox method.mu=0.7, fedclip, not zeroshot, promptfl"),
        ([*ROWS[:2], "fedclip:lr=1"], {}, 2, "its rows are zeroshot, promptfl, promptprox method.mu=0.7, fedclip, not"),
        (ROWS, {"rounds": 4}, 2, "rounds of promptfl is 3, not 4"),
        (ROWS, {"lr": 0.06}, 2, "lr of promptfl is 0.05, not 0.06"),
        (ROWS, {"clients": 2}, 2, "clients of zeroshot is 3, not 2"),
        (ROWS, {}, 1, "it has seed 1 too"),
        (ROWS, {}, "0,2", "it has seed 1 too"),
    ],
)
def test_another_comparisons_folder(
    methods: list[str],
    change: dict[str, Any],
    seeds: Any,
    message: str,
    small: dict[str, Any],
    made: Comparison,
    folder: Path,
) -> None:
    """It is left alone, and the error says what differs."""
    before = (folder / "compare.json").read_bytes()
    with pytest.raises(UserError) as caught:
        fedtailor.compare(methods, {**small, **change}, seeds=seeds, out=folder, callback=Deaf())
    assert f"{folder} holds another comparison: {message}" in str(caught.value)
    assert f"fedtailor compare --resume {folder}" in str(caught.value)
    assert (folder / "compare.json").read_bytes() == before


def test_a_setting_that_has_come_in_since(made: Comparison, small: dict[str, Any], folder: Path) -> None:
    """A folder from before there was a setting has what is its default, and is gone on with."""
    note = folder / "compare.json"
    before = note.read_bytes()
    old = json_object(before)
    for row in old["rows"]:
        assert row["run"]["plan"].pop("deadline") > 0
    note.write_bytes(sealed(old))
    again = fedtailor.compare(ROWS, small, seeds=2, out=folder, callback=Deaf())
    assert untimed(again) == untimed(made)
    assert note.read_bytes() == before


def test_folders_that_are_none(small: dict[str, Any], tmp_path: Path) -> None:
    """A file, a folder with something else in it, one of another version, one that is damaged."""
    (tmp_path / "notes.txt").write_text("dear")
    with pytest.raises(UserError, match=r"notes\.txt is a file; choose another --out"):
        fedtailor.compare(ROWS, small, out=tmp_path / "notes.txt")
    with pytest.raises(UserError, match="is not empty, and holds no comparison; choose another --out"):
        fedtailor.compare(ROWS, small, out=tmp_path)
    with pytest.raises(UserError, match=r"is not a comparison's folder: it has no compare\.json"):
        load_plan(tmp_path)
    note = {**make_spec(ROWS, small).note(), "number": "last"}
    for text, message in (
        (json.dumps({**note, "version": "0.0.1"}), "was written by fedtailor 0.0.1, this is"),
        ("{", "is damaged"),
        ("{}", "is damaged: it lacks number, rows, seeds, settings, version"),
    ):
        (tmp_path / "compare.json").write_text(text)
        with pytest.raises(UserError, match=message):
            fedtailor.compare(ROWS, small, out=tmp_path)


def test_a_run_folder_that_was_edited(small: dict[str, Any], tmp_path: Path) -> None:
    """Its numbers are not this row's."""
    settings = {**small, "rounds": 1}
    fedtailor.compare(["promptfl"], settings, out=tmp_path)
    toml = tmp_path / "promptfl" / "seed-0" / "run.toml"
    toml.write_text(toml.read_text().replace("lr = 0.05", "lr = 0.5"))
    with pytest.raises(UserError, match=r"seed-0 holds another run than the comparison's; was it edited\?"):
        fedtailor.compare(["promptfl"], settings, out=tmp_path)


def test_two_at_once(small: dict[str, Any], tmp_path: Path) -> None:
    """Another process in the same folder is refused, and begins nothing."""
    with (
        FileLock(RunFolder(tmp_path).folder / ".lock"),
        pytest.raises(UserError, match="another process is running in"),
    ):
        fedtailor.compare(["promptfl"], small, out=tmp_path, callback=Deaf())
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]


@pytest.mark.parametrize(
    ("methods", "change", "message"),
    [
        (["promptfl", "fedavg:tuner=coupled,tuner.depth=9"], {}, "fedavg tuner=coupled tuner.depth=9: depth=9: both"),
        (["promptfl"], {"backbone": "nowhere"}, "backbone 'nowhere': there is no such folder"),
        (["promptfl"], {"clients": 1000}, "1000"),
    ],
)
def test_what_only_shows_later_shows_before_the_first_run(
    methods: list[str], change: dict[str, Any], message: str, small: dict[str, Any], tmp_path: Path
) -> None:
    """An impossible last row costs no work on the first, and leaves no folder."""
    with pytest.raises(UserError) as caught:
        fedtailor.compare(methods, {**small, **change}, out=tmp_path / "it", callback=Deaf())
    assert message in str(caught.value)
    assert not (tmp_path / "it").exists()


# --- the command line -----------------------------------------------------------------------------------------------

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Call:
    """`fedtailor compare …` in this process, in an empty folder, on a terminal 80 wide."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")

    def go(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["fedtailor", "compare", *words])
        code: Any = 0
        try:
            main()
        except SystemExit as end:
            code = end.code
        return int(code or 0), *capsys.readouterr()

    return go


@pytest.fixture(scope="module")
def words(small: dict[str, Any]) -> list[str]:
    return [f"{key}={value}" for key, value in {**small, "rounds": 1}.items()]


def test_json_and_resume(call: Call, words: list[str], tmp_path: Path) -> None:
    """One object on stdout, nothing on stderr; a new folder under runs/; --resume reads it back."""
    code, out, err = call("promptfl", *words, "seeds=2", "--json", "--number", "best")
    assert (code, err) == (0, "")
    summary = json.loads(out)
    assert summary["folder"] == "runs/compare-folder-dots"
    assert [row["title"] for row in summary["rows"]] == ["zeroshot", "promptfl"]
    assert (summary["number"], summary["seeds"]) == ("best", [0, 1])
    code, out, err = call("--resume", summary["folder"], "--json")
    assert (code, err) == (0, "")
    assert json.loads(out) == summary
    code, out, _ = call("--resume", summary["folder"], "--json", "--number", "last")
    assert json.loads(out)["number"] == "last"
    assert read(tmp_path / summary["folder"] / "table.json")["number"] == "last"


def test_table(call: Call, words: list[str], tmp_path: Path) -> None:
    """Both sections with all columns in 80 characters, also with long titles; and where the page is."""
    rows = ["promptfl", "promptfl:tuner.length=2,lr=0.2,engine=posted"]
    code, out, err = call(*rows, *words, "--seeds", "5,7", "--out", "mine")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert max(map(len, lines)) <= 80
    headings = [line.split() for line in lines if "overall" in line]
    assert headings == [["overall", "head", "mid", "tail", "balanced"]] * 2
    assert ["up/round", "down/round", "seconds"] in [line.split() for line in lines]
    assert sum(line.startswith("zeroshot") for line in lines) == 3
    assert "…" not in out
    assert "mine/table.md" in out
    assert sorted(p.name for p in (tmp_path / "mine" / "promptfl").iterdir()) == ["seed-5", "seed-7"]


@pytest.mark.parametrize("extra", [["rounds=3"], ["promptfl"], ["--seeds", "3"], ["--out", "there"]])
def test_resume_takes_no_settings(call: Call, extra: list[str]) -> None:
    code, out, err = call("--resume", "runs/x", *extra)
    assert (code, out) == (2, "")
    assert "--resume takes all settings from the comparison's folder; give no others" in err


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        ([], "no method is named"),
        (["--resume", "nowhere"], "nowhere is not a comparison's folder"),
        (["fedprx"], "unknown method 'fedprx'; did you mean 'fedprox'?"),
        (["promptfl", "fedclip:clients=2"], "the rows differ in clients: 3 in promptfl, 2 in fedclip clients=2"),
        (["promptfl", "seed=1", "--seeds", "2"], "the seeds are given twice"),
        (["promptfl", "--seeds", "x"], "seeds=x: give how many"),
        (["promptfl", "--number", "first"], "unknown number 'first'"),
        (["promptfl", "data.root=nowhere", "data=cifar10"], "is missing; download"),
    ],
)
def test_mistakes_leave_nothing(call: Call, words: list[str], tmp_path: Path, mistake: list[str], message: str) -> None:
    """Exit code 2, the message alone on stderr, and no folder made."""
    given = {word.partition("=")[0] for word in mistake}
    rest = [] if "--resume" in mistake else [w for w in words if w.partition("=")[0] not in given]
    code, out, err = call(*mistake, *rest, "--json")
    assert (code, out) == (2, "")
    assert message in err
    assert list(tmp_path.iterdir()) == []


def test_interrupted(call: Call, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C says how to go on, and that works; before any run it does not promise what isn't there."""

    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Comparing, "on_round", stop)
        code, _, err = call("promptfl", *words, "--out", "mine")
    assert code == 130
    assert "stopped; go on with: fedtailor compare --resume mine" in err
    assert call("--resume", "mine", "--json")[0] == 0
    with monkeypatch.context() as patch:
        patch.setattr(many, "deal", stop)
        code, _, err = call("promptfl", *words, "--out", "other")
    assert "stopped; no run was begun" in err
    assert not (tmp_path / "other").exists()


def test_progress(small: dict[str, Any]) -> None:
    """One bar over the runs, with the present one's name, and one for its rounds; never two of either."""
    seen: list[list[str]] = []

    class Recording(Comparing):
        def on_round(self, record: Any, rounds: int) -> None:
            super().on_round(record, rounds)
            seen.append([f"{task.description} {task.completed}/{task.total}" for task in self.bars.tasks])
            assert "promptfl" in self.bars.tasks[0].fields["note"]

    with Recording(enabled=False) as progress:
        fedtailor.compare(["promptfl"], {**small, "rounds": 1}, seeds=2, callback=progress)
    assert seen == [["runs 1/4", "promptfl: round 1/1"], ["runs 3/4", "promptfl: round 1/1"]]


def test_the_spec_comes_back(small: dict[str, Any], tmp_path: Path) -> None:
    """compare.json holds everything: the runs that it gives are the runs that it was made of."""
    spec: ComparisonSpec = make_spec([*ROWS, "clip-lora", "fedavg:tuner=text_prompt+lora"], small, "3,1")
    (tmp_path / "compare.json").write_text(json.dumps({**spec.note(), "number": "best", "sort": "tail"}))
    back, shown = load_plan(tmp_path)
    assert (shown.number, shown.sort, shown.against) == ("best", "tail", None)
    assert back == ComparisonPlan.of(spec)


def test_the_page(made: Comparison, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The commands of docs/comparing.md are understood, and its code reads what there is."""
    page = (Path(__file__).parent.parent / "docs" / "comparing.md").read_text()
    commands = [line.split()[2:] for line in page.splitlines() if line.startswith("fedtailor compare ")]
    first = commands[0]
    assert first[-2:] == ["--seeds", "3"]
    assert len(make_spec(*split_words(first[:-2]), "3").rows) == 4

    def planned(methods: Any, settings: Any, *, seeds: Any, **more: Any) -> Comparison:
        assert len(make_spec(methods, {**settings, **more}, seeds).rows) == 3
        return made

    monkeypatch.setattr(fedtailor, "compare", planned)
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    exec(code, {})
    assert capsys.readouterr().out.count("\n") == len(TITLES)


# --- several at a time, sorted, all ---------------------------------------------------------------------------------


def test_two_at_a_time_give_the_same_numbers(small: dict[str, Any], made: Comparison, tmp_path: Path) -> None:
    twice = fedtailor.compare(ROWS, small, seeds=2, out=tmp_path / "two", jobs=2)
    assert untimed(twice) == untimed(made)
    assert (tmp_path / "two" / "table.md").is_file()


def test_an_error_in_one_process_ends_the_comparison(small: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(UserError, match="training diverged"):
        fedtailor.compare(["promptfl:lr=1e38", "fedclip"], small, out=tmp_path / "two", jobs=2)
    with pytest.raises(UserError, match="jobs=0"):
        fedtailor.compare(ROWS, small, jobs=0)


def test_rows_are_sorted_by_a_column(made: Comparison) -> None:
    for part in ("global", "personal"):
        lines = section({**made.summary, "sort": "tail"}, part).lines
        tail = {row["title"]: row[part]["tail"]["mean"] for row in made.summary["rows"]}
        tails = [tail[title] for title, _ in lines]
        assert tails == sorted(tails, reverse=True)
        assert {title for title, _ in lines} == set(TITLES)
        assert [title for title, _ in section(made.summary, part).lines] == TITLES
    with pytest.raises(UserError, match="unknown sort"):
        fedtailor.compare(make_spec(["promptfl"], {}), sort="tale")
    with pytest.raises(UserError, match="a ComparisonSpec is complete"):
        fedtailor.compare(make_spec(["promptfl"], {}), rounds=3)


def test_a_row_without_the_number_comes_last(made: Comparison) -> None:
    rows = json.loads(json.dumps(made.summary["rows"]))
    rows[1]["global"]["overall"] = {"mean": None, "std": None}
    lines = section({**made.summary, "rows": rows, "sort": "overall"}, "global").lines
    assert lines[-1][0] == "promptfl"
    assert lines[-1][1][0].text == "–"


def test_every_method_has_one_row() -> None:
    """What is the same method under two names is compared once, under its paper's."""
    names = every_method()
    left_out = set(METHODS) - set(names)
    assert {name for name in left_out if not name.endswith("-released")} == {"fedavg", "fedprox"}
    spec = make_spec(names, {"rounds": 2})
    assert spec.rows[0].method == "zeroshot"
    assert len(spec.rows) == len(names)
