"""`record=closed`: how clients would stand if the closing rounds came now."""

from __future__ import annotations

import pytest

from fedtailor.base.errors import UserError
from fedtailor.runs.execute import train
from fedtailor.settings.run import make_run
from world import world


def test_as_a_shorter_run_ends() -> None:
    """After each round, the very numbers that a run of so many rounds has after its closing one."""
    fast = {"method.personal_lr": 0.5}
    rows = [record.row() for record in train(world("fedpurel", "text_prompt", record="closed", **fast))]
    assert [row["round"] for row in rows] == [1, 2, 3, 4]
    for t in (1, 2, 3):
        *_, last = train(world("fedpurel", "text_prompt", rounds=t, **fast))
        expected = {name: value for name, value in last.row()["personal"].items() if name not in {"worst", "per_class"}}
        assert rows[t - 1]["diagnostics"]["closed"] == expected
    assert rows[3]["diagnostics"]["closed"] == rows[2]["diagnostics"]["closed"]  # the closing round itself
    assert rows[0]["diagnostics"]["closed"]["overall"] != rows[0]["personal"]["overall"]  # φ_k is in it


def test_in_tested_rounds_only() -> None:
    """It costs as much as the closing rounds do."""
    rows = [record.row() for record in train(world("fedpurel", "adapter", record="closed", every=2))]
    assert [row["diagnostics"]["closed"] is None for row in rows] == [True, False, True, False]


def test_what_closes() -> None:
    """As released there is a personal pass in every round, and nothing to close; nor with T_p = 0."""
    assert make_run("fedpurel", {"record": "closed"}).record == ("closed",)
    for other in ({"preset": "released"}, {"method.T_p": 0}):
        with pytest.raises(UserError, match="record=closed needs closing rounds"):
            make_run("fedpurel", {**other, "record": "closed"})
