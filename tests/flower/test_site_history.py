"""`fedtailor flower site`: what a site did, sent, spent and got, told from its own folder."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from deployed import write_data
from test_site_models import Places

from conftest import Call
from fedtailor.remote.audit import read_lines
from fedtailor.remote.history import budget_of, runs_of
from fedtailor.remote.policy import SitePolicy
from fedtailor.remote.spending import Spending
from fedtailor.use.model_file import read_facts
from remote import RUN


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A site's, after a run that it has a model of."""
    folder = tmp_path_factory.mktemp("history")
    there = Places(folder / "fed", write_data(folder / "data"), "promptfl", name="tailored-1")
    there.give(there.finished())
    there.transport.sites[0].handle(b"garbage")
    return folder / "fed" / "client-0"


def seen(call: Call, home: Path) -> dict[str, Any]:
    answer = call("flower", "site", "--home", str(home), "--json")
    assert answer.code == 0
    found: dict[str, Any] = json.loads(answer.out)
    return found


def test_a_run_as_the_site_knows_it(home: Path, call: Call) -> None:
    (run,) = seen(call, home)["runs"]
    lines = [line.facts for line in read_lines(home / "state" / "audit") if line.facts["run"]]
    facts = read_facts(home / "models" / f"tailored-1-{RUN[:8]}")
    assert (run["run"], run["name"], run["method"], run["of"], run["rounds"]) == (
        RUN,
        "tailored-1",
        "promptfl",
        2,
        [1, 2],
    )
    assert (run["first"], run["last"]) == (lines[0]["at"], lines[-1]["at"])
    assert (run["replies"], run["bytes"]) == (len(lines), sum(line["bytes"] for line in lines))
    assert run["scores"]["personal"] == facts.scores["personal"]["overall"]
    assert run["scores"]["pictures"] == sum(facts.scores["pictures"].values()) > 0
    for name, row in run["scores"]["per_class"].items():
        assert row["zero_shot"] == facts.scores["zero_shot"]["per_class"][name]
        assert row["pictures"] == facts.scores["pictures"][name] > 0


def test_as_tables(home: Path, call: Call) -> None:
    (run,) = seen(call, home)["runs"]
    answer = call("flower", "site", "--home", str(home))
    for told in ("tailored-1", "promptfl", "2/2", f"{run['scores']['personal']:.2f}", f"tailored-1-{RUN[:8]}"):
        assert told in answer.out
    assert "updates: 2 releases, 2 of them without noise; no bound can be told · 5 orders today of 5000" in answer.out
    answer = call("flower", "site", "--home", str(home), "--run", "tailored-1")
    for row in run["scores"]["per_class"].values():
        assert f"{row['pictures']} │" in answer.out
        assert f"{row['personal']:.2f}" in answer.out
    assert "there is no run 'other' here; there are: tailored-1" in call(
        "flower", "site", "--home", str(home), "--run", "other"
    ).err.replace("\n", " ")


def test_what_is_no_longer_there(home: Path, tmp_path: Path, call: Call) -> None:
    """The log alone says enough; a folder without one is none."""
    shutil.copytree(home / "state" / "audit", tmp_path / "state" / "audit")
    (run,) = seen(call, tmp_path)["runs"]
    assert (run["name"], run["method"], run["of"], run["rounds"]) == ("tailored-1", "", None, [1, 2])
    assert (run["model"], run["scores"]) == (None, {})
    assert "nothing was measured here" in call("flower", "site", "--home", str(tmp_path), "--run", "tailored-1").err
    assert "has taken part in no run" in call("flower", "site", "--home", str(tmp_path / "none")).err


def test_refusals_are_counted_by_their_codes(tmp_path: Path, home: Path) -> None:
    """By the run that they were of."""
    shutil.copytree(home.parent, tmp_path / "fed")
    there = Places(
        tmp_path / "fed", home.parent.parent / "data", "promptfl", SitePolicy(tests=False), name="tailored-1"
    )
    there.engine().evaluate(there.experiment, there.experiment.job.first_server())
    (run,) = runs_of(tmp_path / "fed" / "client-0")
    assert run.refused == {"policy-tests": 1}


def test_a_budget_is_what_the_policy_reads(tmp_path: Path) -> None:
    policy = SitePolicy(privacy="gaussian", noise=4.0, epsilon=3.0)
    spent = Spending(tmp_path / "state" / "spent.json")
    spent.release(["updates"], {"updates": 4.0, "counts": 4.0})
    spent.order(RUN)
    spent.save()
    found = budget_of(tmp_path, policy)
    once = spent.epsilon("updates", policy.delta)
    assert found["updates"] == {"releases": 1, "without_noise": 0, "epsilon": once, "limit": 3.0}
    assert found["counts"] == {"releases": 0, "without_noise": 0, "epsilon": 0.0, "limit": None}
    assert 0 < once < 3
    assert found["orders"]["today"] == 1
