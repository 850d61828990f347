"""The numbers of a test, on predictions that can be counted by hand."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from sklearn.metrics import f1_score

import fedtailor
from fedtailor.base.errors import UserError
from fedtailor.client.codec import from_bytes, to_bytes
from fedtailor.data.groups import Groups
from fedtailor.evaluation.metrics import (
    METRICS,
    Metric,
    Numbers,
    Predictions,
    Score,
    Scores,
    balancedness,
    score,
    score_parts,
)
from fedtailor.remote.messages import EvaluateReply, decode, encode
from fedtailor.report.comparison import comparison_table
from fedtailor.report.tables import result_table
from run_content import read

GROUPS = Groups(np.array([0]), np.array([1, 2]), np.array([3]))


def counted(truth: list[int], predicted: list[int]) -> Score:
    return score(np.array(truth, dtype=np.int64), np.array(predicted, dtype=np.int64), GROUPS)


def named(*values: float | None) -> dict[str, float | None]:
    return dict(zip(METRICS, values, strict=True))


def test_by_hand() -> None:
    """Class 0: 3 of 4, class 1: 1 of 2, class 2: 2 of 2, class 3: 0 of 2; 6 of 10 in all.

    F1 = 2 right / (2 right + wrongly named + missed): 6/8, 2/4, 4/6, 0; their mean is 0.4791667.
    Balancedness of (0.75, 0.5, 1, 0): the distances are 0.25 twice, 0.5 twice, 0.75 and 1, each counted twice:
    (4 + 2 (2 e^-2.5 + 2 e^-5 + e^-7.5 + e^-10)) / 16
    """
    found = counted([0, 0, 0, 0, 1, 1, 2, 2, 3, 3], [0, 0, 0, 1, 1, 2, 2, 2, 0, 2])
    assert found.overall == pytest.approx(60)
    assert [found.values[group] for group in ("head", "mid", "tail")] == pytest.approx([75, (50 + 100) / 2, 0])
    assert found.values["macro_f1"] == pytest.approx(100 * (6 / 8 + 2 / 4 + 4 / 6 + 0) / 4)
    pairs = 2 * math.exp(-2.5) + 2 * math.exp(-5) + math.exp(-7.5) + math.exp(-10)
    assert found.values["balancedness"] == pytest.approx(100 * (4 + 2 * pairs) / 16)
    assert found.per_class == pytest.approx((75, 50, 100, 0))
    assert found.worst is None


def test_head_and_tail_are_means_of_classes() -> None:
    """Mid has 1 of 1 and 0 of 9: 50 by class, though 10 by picture."""
    assert counted([1] + [2] * 9, [1] + [0] * 9).values["mid"] == pytest.approx(50)


def test_absent_classes_are_left_out() -> None:
    """Without pictures of classes 2 and 3: mid is class 1 alone, tail unknown; naming class 3 adds no class to F1.

    F1 of class 0: 1 right, 1 missed: 2/3; of class 1: 1.
    """
    found = counted([0, 0, 1], [0, 3, 1])
    assert [found.values[group] for group in ("head", "mid", "tail")] == [pytest.approx(50), pytest.approx(100), None]
    assert found.per_class == (pytest.approx(50), pytest.approx(100), None, None)
    assert found.values["macro_f1"] == pytest.approx(100 * (2 / 3 + 1) / 2)
    assert found.values["balancedness"] == pytest.approx(100 * (2 + 2 * math.exp(-5)) / 4)


def test_nothing_to_test() -> None:
    """A client without test pictures has no numbers, not zeros."""
    found = counted([], [])
    assert found.values == dict.fromkeys(METRICS)
    assert found.per_class == (None,) * 4


def test_balancedness() -> None:
    """1 for equal classes at any level; 1/C² (2 + 2 e^-σ) for one class known and one not."""
    whole = np.array([[10, 10, 10, 0], [5, 5, 0, 0]])
    found = Predictions(whole, whole, np.array([[3, 3, 3, 0], [0, 5, 0, 0]]), GROUPS)
    assert balancedness(found, sigma=2) == pytest.approx([100, 100 * (2 + 2 * math.exp(-2)) / 4])


def test_mean_over_clients() -> None:
    """Each number is the plain mean over the clients that have it; the worst client is the least overall."""
    a = Score(named(80, 90, None, 10, 70, 50), per_class=(100, None))
    b = Score(named(40, 50, None, None, 30, 30), per_class=(50, None))
    nobody = Score(dict.fromkeys(METRICS), per_class=(None, None))
    mean = Scores.of([a, b, nobody]).mean()
    assert mean == Score(named(60, 70, None, 10, 50, 40), per_class=(75, None), worst=40)
    assert Scores.of([nobody]).mean().overall is None
    assert Scores.of([nobody]).mean().worst is None


def test_many_clients_at_once_are_as_each_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the number of pairs of classes that are compared at a time; one client has no pictures."""
    rng = np.random.default_rng(0)
    truth, predicted, owner = rng.integers(0, 4, (3, 200))
    owner[owner == 2] = 4
    monkeypatch.setattr("fedtailor.evaluation.metrics.PAIRS", 17)
    together = score_parts(truth, predicted, owner, 5, GROUPS)
    assert len(together) == 5
    for k, found in enumerate(together):
        alone = counted(truth[owner == k].tolist(), predicted[owner == k].tolist())
        assert found == alone
    assert together[2].values == dict.fromkeys(METRICS)
    assert together.overall == tuple(found.overall for found in together)
    f1 = [100 * f1_score(truth[owner == k], predicted[owner == k], average="macro") for k in (0, 1, 3, 4)]
    assert [together[k].values["macro_f1"] for k in (0, 1, 3, 4)] == pytest.approx(f1)


def test_the_row_of_a_record() -> None:
    """What goes into rounds.jsonl: plain JSON, metrics first."""
    row = counted([0], [0]).row("abcd")
    assert list(row) == [*METRICS, "worst", "per_class"]
    assert row["per_class"] == {"a": 100, "b": None, "c": None, "d": None}


@pytest.mark.parametrize("values", [{}, {"overall": 50.0}, {**dict.fromkeys(METRICS), "price": 3.0}])
def test_a_score_has_every_metric_and_no_other(values: dict[str, float | None]) -> None:
    with pytest.raises(ValueError, match="a score consists of overall, head, "):
        Score(values)


def reply_with(personal: Score) -> EvaluateReply:
    there = {"run": "0" * 32, "client": 0, "request_id": "00c0ffee-1"}
    return EvaluateReply(**there, personal=personal, shared=personal, zero_shot=personal, pseudo=None)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"values": {"overall": 50.0}}, "personal: .*a score consists of"),
        ({"values": {**dict.fromkeys(METRICS), "price": 3.0}}, "personal: .*a score consists of"),
        ({"values": {**dict.fromkeys(METRICS), "tail": math.nan}}, "personal.values.tail: .*finite"),
        ({"per_class": [math.inf]}, "personal.per_class.0: .*finite"),
    ],
)
def test_a_wrong_score_from_a_remote_client_is_refused(change: dict[str, Any], why: str) -> None:
    groups, note = from_bytes(encode(reply_with(counted([0], [0]))))
    (body,) = (value for value in note.values() if isinstance(value, dict) and "personal" in value)
    body["personal"] |= change
    with pytest.raises(UserError, match=why):
        decode(to_bytes(groups, note))


def worst_class(found: Predictions) -> Numbers:
    return np.asarray(np.nanmin(found.class_accuracy, axis=1))


def test_a_new_metric_is_one_function_and_one_line(
    small: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is in records, results, tables, comparisons and what remote clients send."""
    monkeypatch.setitem(METRICS, "worst_class", Metric("worst class", worst_class))
    run = fedtailor.run("promptfl", small, out=tmp_path / "run")
    lines = [json.loads(line) for line in (tmp_path / "run" / "rounds.jsonl").read_text().splitlines()]
    for part in ("global", "personal"):
        assert [row[part]["worst_class"] for row in lines] == [row[part]["worst_class"] for row in run.rounds]
        assert run.summary[part]["worst_class"] == round(lines[-1][part]["worst_class"], 4)
        assert run.summary["best"][part]["worst_class"] is not None
    assert lines[-1]["global"]["worst_class"] == min(lines[-1]["global"]["per_class"].values())
    assert read(tmp_path / "run" / "result.json") == run.summary
    assert [column.header for column in result_table(run.summary).columns][-1] == "worst class"

    both = fedtailor.compare(["promptfl"], small, out=tmp_path / "both", sort="worst_class")
    assert both.summary["rows"][1]["global"]["worst_class"]["mean"] == run.summary["global"]["worst_class"]
    assert read(tmp_path / "both" / "table.json") == both.summary
    assert "| balanced | worst class |" in (tmp_path / "both" / "table.md").read_text()
    console = Console(width=100)
    with console.capture() as capture:
        console.print(comparison_table(both.summary))
    assert capture.get().count("worst class") == 2

    sent = counted([0, 0, 1], [0, 3, 1])
    back, _ = decode(encode(reply_with(sent)))
    assert isinstance(back, EvaluateReply)
    assert back.personal == sent
    assert back.personal.values["worst_class"] == 50
