"""Few clients: all take part unless told otherwise; and who never did is said."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import fedtailor
from conftest import Call
from fedtailor.runs.result import absent
from fedtailor.settings.run import make_run, read_toml


@pytest.mark.parametrize(
    ("settings", "fraction"),
    [
        ({}, 0.4),
        ({"clients": 11}, 0.4),
        ({"clients": 10}, 1.0),
        ({"clients": 3}, 1.0),
        ({"clients": 3, "fraction": 0.4}, 0.4),
        ({"clients": 3, "preset": "capt"}, 0.4),  # CAPT's tables say 0.4
    ],
)
def test_all_of_a_few(settings: dict[str, Any], fraction: float) -> None:
    """Broken: of three clients one is drawn a round and some may never train; or a fraction that was given is not."""
    assert make_run("promptfl", settings).fraction == fraction


def test_presets_of_ten_clients() -> None:
    assert make_run("fedotp", preset="original").fraction == 0.1  # its recipe's own
    assert (make_run("fedpgp", preset="original").clients, make_run("fedpgp", preset="original").fraction) == (10, 1.0)


def test_what_a_run_was_made_with_stays(tmp_path: Path) -> None:
    """Broken: a run.toml of three clients and 0.4, written before, is resumed with all of them."""
    (tmp_path / "run.toml").write_text(make_run("promptfl", {"clients": 3, "fraction": 0.4}).to_toml())
    assert read_toml(tmp_path / "run.toml").fraction == 0.4


def test_who_never_took_part(small: dict[str, Any], tmp_path: Path, call: Call) -> None:
    """Broken: a run looks like one of three sites, and one of them was never asked."""
    words = [f"{key}={value}" for key, value in {**small, "rounds": 1, "fraction": 0.4}.items()]
    answer = call("run", "promptfl", *words, "--out", "one")
    saved = json.loads((tmp_path / "one/result.json").read_text())
    cohort = json.loads((tmp_path / "one/rounds.jsonl").read_text())["cohort"]
    assert len(cohort) == 1
    assert saved["never_took_part"] == [name for name in ("0", "1", "2") if name not in cohort]
    which = ", ".join(saved["never_took_part"])
    assert f"2 client(s) never took part ({which}); more rounds or a larger fraction reach them" in answer.out
    whole = fedtailor.run("promptfl", {key: value for key, value in small.items() if key != "fraction"}, rounds=1)
    assert whole.summary["never_took_part"] == []
    assert fedtailor.run("zeroshot", small).summary["never_took_part"] == []
    central = fedtailor.run("central", small, rounds=1)
    assert (central.rounds[0]["cohort"], central.summary["never_took_part"]) == (["server"], [])


def test_a_reply_that_does_not_count_is_no_part() -> None:
    rows = [{"cohort": ["0", "1", "2"], "dropped": {"1": "late"}}, {"cohort": ["0"], "dropped": {}}]
    assert absent(["0", "1", "2"], rows) == ["1"]
