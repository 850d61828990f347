"""Values chosen on validation pictures: each run at its own best, and the test set has no say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import fedtailor
from fedtailor.base.errors import UserError
from fedtailor.runs.callback import ComparisonCallback
from fedtailor.runs.tuning import Tuned, Tuning, choose, tune
from fedtailor.settings.run import make_run, read_toml
from fedtailor.simulation.build import Experiment

GRID = {"lr": [1e-4, 0.05, 0.5]}


class Watching(ComparisonCallback):
    """Notes every run that begins: its method, rate, seed, rounds and the part that it is validated on."""

    def __init__(self) -> None:
        self.begun: list[tuple[Any, ...]] = []

    def on_start(self, experiment: Experiment, zero_shot: Any, done: int) -> None:
        run = experiment.run
        self.begun.append((run.method.name, run.local.lr, run.seed, run.rounds, run.data.validation))


def summary(**scores: Any) -> dict[str, Any]:
    found = {"global": {"overall": 1.0, "tail": 2.0}, "personal": {"overall": 3.0, "tail": 4.0}}
    return {**found, "balanced": {"global": 5.0, "personal": 6.0}, **scores}


@pytest.mark.parametrize(
    ("by", "number", "score"),
    [
        ("balanced", "global balanced accuracy", 5.0),
        ("overall", "global overall", 1.0),
        ("tail", "global tail", 2.0),
        ("personal", "personal overall", 3.0),
        ("personal-tail", "personal tail", 4.0),
    ],
)
def test_which_number(by: str, number: str, score: float) -> None:
    run = make_run("promptfl")
    made = choose(run, Tuning(GRID, by=by), [({"local.lr": 0.1}, [summary()])])
    assert (made.by, made.scores[0].score) == (number, score)


def test_without_a_global_model_it_is_the_personal_one() -> None:
    """Broken: `local` has no number to choose by."""
    none = {"overall": None, "tail": None}
    found = summary(**{"global": none, "balanced": {"global": None, "personal": 6.0}})
    for by, number, score in (("balanced", "personal overall", 3.0), ("tail", "personal tail", 4.0)):
        made = choose(make_run("local"), Tuning(GRID, by=by), [({"local.lr": 0.1}, [found])])
        assert (made.by, made.scores[0].score) == (number, score)


def best_of(*scores: float | None) -> Tuned:
    grid = {"local.lr": [0.1, 0.2, 0.3, 0.4][: len(scores)]}
    tried = [
        ({"local.lr": lr}, [summary(balanced={"global": s, "personal": s}) if s is not None else {}])
        for lr, s in zip(grid["local.lr"], scores, strict=True)
    ]
    return choose(make_run("promptfl"), Tuning(grid), tried)


@pytest.mark.parametrize(
    ("scores", "chosen", "ends"),
    [
        ((1.0, 3.0, 2.0), 0.2, {}),
        ((3.0, 3.0, 2.0), 0.1, {"local.lr": "smallest"}),  # of equal ones the first
        ((1.0, 2.0, 3.0), 0.3, {"local.lr": "largest"}),
        ((1.0, 2.0, None), 0.2, {}),  # the largest diverged
        ((0.0, None), 0.1, {"local.lr": "smallest"}),
    ],
)
def test_the_best(scores: tuple[float | None, ...], chosen: float, ends: dict[str, str]) -> None:
    made = best_of(*scores)
    assert made.chosen == {"local.lr": chosen}
    assert made.run.local.lr == chosen
    assert made.ends == ends


def test_a_value_that_diverged_with_one_seed() -> None:
    """Broken: its other seeds speak for it."""
    tried = [
        ({"local.lr": 1}, [summary(), {}]),
        ({"local.lr": 2}, [summary(balanced={"global": 0.0, "personal": 0.0})] * 2),
    ]
    assert choose(make_run("promptfl"), Tuning(GRID, seeds=(0, 1)), tried).chosen == {"local.lr": 2}
    with pytest.raises(UserError, match="training diverged with each of these values"):
        best_of(None, None)


def test_tune(small: dict[str, Any], tmp_path: Path) -> None:
    """Every value on validation pictures, in run folders that are read again; what does not train is left as it is."""
    runs = [make_run(name, small) for name in ("promptfl", "zeroshot", "fedclip")]
    watching = Watching()
    made = tune(runs, GRID, tmp_path, watching, rounds=2, validation=0.25)
    tried = [(name, lr, 0, 2, 0.25) for name in ("promptfl", "fedclip") for lr in GRID["lr"]]
    assert watching.begun == tried
    assert made[1] == Tuned(runs[1], {}, "", [])
    for run, its in zip(runs[::2], made[::2], strict=True):
        assert its.run == make_run(run.method.name, {**small, "lr": its.chosen["local.lr"]})
        assert its.run.data.validation == 0
        for lr, score in zip(GRID["lr"], its.scores, strict=True):
            folder = tmp_path / run.method.name / f"lr-{lr}" / "seed-0"
            assert read_toml(folder / "run.toml").every == 2, "one test is enough"
            assert score.score == json.loads((folder / "result.json").read_text())["balanced"]["global"]
        assert its.chosen["local.lr"] == max(its.scores, key=lambda it: it.score or 0).values["local.lr"]
    again = Watching()
    assert tune(runs, GRID, tmp_path, again, rounds=2, validation=0.25) == made
    assert again.begun == []


def test_a_grid_of_two_and_two_seeds(small: dict[str, Any]) -> None:
    run = make_run("promptprox", {**small, "rounds": 1})
    watching = Watching()
    (made,) = tune([run], {"lr": [0.01, 0.1], "method.mu": [0.1, 1.0]}, None, watching, seeds=(3, 4))
    assert len(watching.begun) == 8
    assert [tuple(it.values.values()) for it in made.scores] == [(0.01, 0.1), (0.01, 1.0), (0.1, 0.1), (0.1, 1.0)]
    assert {seed for _, _, seed, *_ in watching.begun} == {3, 4}
    assert all(len(it.scores) == 2 for it in made.scores)


def test_a_rate_that_diverges_is_no_good(small: dict[str, Any], tmp_path: Path) -> None:
    """Broken: one wild value ends the whole comparison."""
    run = make_run("promptfl", {**small, "rounds": 1})
    (made,) = tune([run], {"lr": [1e38, 0.05]}, tmp_path)
    assert made.chosen == {"local.lr": 0.05}
    assert [it.score is None for it in made.scores] == [True, False]


@pytest.mark.parametrize(
    ("grid", "options", "message"),
    [
        ({"lr": [0.1]}, {}, "give two values or more"),
        ({"lr": [0.1, 0.1]}, {}, "none of them twice"),
        ({"data.alpha": [0.1, 1]}, {}, "tune data.alpha: it decides what is compared"),
        ({"rounds": [1, 2]}, {}, "tune rounds: it decides what is compared"),
        ({"lrr": [1, 2]}, {}, "unknown key 'lrr'"),
        ({"method.mu": [1, 2]}, {}, "unknown key 'method.mu'"),
        ({"lr": [1, -2]}, {}, "local.lr"),
        ({"lr": [1, 2]}, {"by": "tale"}, "unknown tune-by 'tale'; did you mean 'tail'"),
        ({"lr": [1, 2]}, {"validation": 0.0}, "validation=0.0: a part of the training pictures"),
        ({"lr": [1, 2]}, {"rounds": 0}, "tune-rounds=0: 1 or more"),
    ],
)
def test_mistakes(grid: dict[str, Any], options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as caught:
        tune([make_run("promptfl")], grid, **options)
    assert message in str(caught.value)


def test_a_tuned_comparison(small: dict[str, Any], tmp_path: Path) -> None:
    """Each row at its own best, trained on everything and tested on the test set; a row's own value stays."""
    settings = {key: value for key, value in small.items() if key != "lr"} | {"rounds": 2}
    words, watching = ["promptfl", "fedclip", "promptprox:lr=0.07"], Watching()
    made = fedtailor.compare(words, settings, seeds=2, out=tmp_path, tune=GRID, callback=watching)
    tuning = made.summary["tuning"]
    assert list(tuning) == ["promptfl", "fedclip"]
    chosen = {title: row["chosen"]["lr"] for title, row in tuning.items()}
    final = {
        (name, lr, seed)
        for name, lr, seed, _, validation in watching.begun
        if validation == 0 and lr and name != "zeroshot"
    }
    assert final == {(name, lr, seed) for seed in (0, 1) for name, lr in [*chosen.items(), ("promptprox", 0.07)]}
    alone = fedtailor.run("promptfl", {**settings, "lr": chosen["promptfl"]}, seed=1).summary
    assert alone["global"] == made.runs["promptfl"][1]["global"]
    for title, row in tuning.items():
        assert [it["values"] for it in row["tried"]] == [{"lr": lr} for lr in GRID["lr"]]
        assert row["score"] == max(it["score"] for it in row["tried"])
        assert (tmp_path / "tune" / title / "lr-0.05" / "seed-0" / "result.json").is_file()
    page = (tmp_path / "table.md").read_text()
    assert "Chosen on validation pictures: promptfl lr=" in page
    assert "| promptfl, by global balanced accuracy |" in page
    assert "--tune=lr=0.0001,0.05,0.5" in page

    again = Watching()
    back = fedtailor.compare(words, settings, seeds=2, out=tmp_path, tune=GRID, callback=again)
    assert again.begun == []
    assert {**back.summary, "date": ""} == {**made.summary, "date": ""}
    for other in (None, {"lr": [0.05, 0.5]}, Tuning(GRID, by="tail")):
        with pytest.raises(UserError, match=r"holds another comparison: it has --tune=lr=0.0001,0.05,0.5, not"):
            fedtailor.compare(words, settings, seeds=2, out=tmp_path, tune=other)


@pytest.mark.parametrize(
    ("settings", "grid", "message"),
    [
        ({"lr": 0.1}, {"lr": [1, 2]}, "lr is given twice"),
        ({"data.validation": 0.1}, {"lr": [1, 2]}, "say how many by --validation"),
        ({}, {"method.lam": [1, 2]}, "--tune method.lam: no row has this key"),
        ({}, {"lr": [0.1, -1]}, "local.lr"),
    ],
)
def test_mistakes_in_a_comparison(settings: dict[str, Any], grid: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as caught:
        fedtailor.compare(["promptfl"], settings, tune=grid)
    assert message in str(caught.value)
