"""Differences between rows: paired over seeds, or over test pictures where seeds are few."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedtailor
from fedtailor.base.errors import UserError
from fedtailor.evaluation.metrics import METRICS, score
from fedtailor.report.comparison import difference, difference_notes
from fedtailor.runs.predictions import FILE, Answers, read_predictions
from fedtailor.runs.statistics import RESAMPLES, differences, interval, resample


def scored(*values: float | None) -> list[Any]:
    """Runs of seeds 0, 1 …, with the same value everywhere."""
    return [
        (i, {part: dict.fromkeys(METRICS, v) for part in ("global", "personal")}, None) for i, v in enumerate(values)
    ]


def test_paired_over_seeds() -> None:
    """Differences 1, 2 and 3: mean 2, s = 1, t(2, 0.975) = 4.3027, so 2 ± 4.3027/√3 = 2 ± 2.4842.

    Broken: seeds are not paired, and what all rows share in a seed widens the interval: 0 ± 24."""
    found = differences({"a": scored(50, 60, 70), "b": scored(51, 62, 73)}, "a", bootstrap=False)
    assert found["against"] == "a"
    assert list(found["rows"]) == ["b"]
    row = found["rows"]["b"]
    assert (row["seeds"], row["interval"]) == ([0, 1, 2], "seeds")
    for part in ("global", "personal"):
        assert row[part]["tail"] == {"mean": 2, "low": -0.4841, "high": 4.4841}
    assert difference(row["global"]["tail"]).text == "+2.00±2.48"


def test_only_common_seeds_count() -> None:
    found = differences({"a": scored(50, 60)[:1], "b": scored(51, 70), "c": scored(0, 9)[1:]}, "a", bootstrap=False)
    assert list(found["rows"]) == ["b"]
    assert found["rows"]["b"]["seeds"] == [0]
    assert found["rows"]["b"]["global"]["overall"] == {"mean": 1, "low": None, "high": None}


def test_what_has_no_number() -> None:
    """A method without a global model has no difference, not one of 0."""
    found = differences({"a": scored(50, 60, 70), "b": scored(51, None, 73)}, "a", bootstrap=False)
    assert found["rows"]["b"]["global"]["overall"] == {"mean": None, "low": None, "high": None}
    assert difference(found["rows"]["b"]["global"]["overall"]).text == "–"


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ([1.0, 2.0, 3.0], "+2.00±2.48"),
        ([-2.0, -2.1, -2.2], "-2.10±0.25*"),
        ([1.0, 1.0, 1.0], "+1.00±0.00*"),
        ([-0.001] * 2, "+0.00"),
    ],
)
def test_an_asterisk_where_the_interval_excludes_0(values: list[float], text: str) -> None:
    assert difference(interval(values, None)).text == text


def answers(rng: np.random.Generator, rate: float, N: int = 600) -> Answers:
    """Two classes, of which `rate` is said right; the second half of each is another client's."""
    label = np.arange(N) % 2
    said = np.where(rng.random(N) < rate, label, 1 - label)
    owner = np.arange(N) * 2 // N
    return Answers(label, np.array([0, 2]), said, said, np.arange(N), owner)


def test_the_bootstrap_knows_the_standard_error() -> None:
    """Of an accuracy p over N pictures it is √(p(1 − p)/N). Broken: draws are too few, or of other pictures."""
    one = answers(np.random.default_rng(0), 0.8)
    found = resample(one)
    p = score(one.label, one.shared, one.groups).overall
    assert p is not None
    for part in ("global", "personal"):
        assert found[part]["overall"].shape == (RESAMPLES,)
        assert found[part]["overall"].mean() == pytest.approx(p, abs=0.3)
        assert found[part]["overall"].std() == pytest.approx(100 * (p / 100 * (1 - p / 100) / 600) ** 0.5, rel=0.1)
    again = resample(one)
    assert np.array_equal(found["global"]["tail"], again["global"]["tail"])


def test_the_bootstrap_is_paired() -> None:
    """Two models that differ in ten pictures. Broken: each is asked about other pictures, and ± is some six times."""
    one = answers(np.random.default_rng(0), 0.5)
    said = one.shared.copy()
    wrong = np.flatnonzero(said != one.label)[:10]
    said[wrong] = one.label[wrong]
    two = Answers(one.label, one.group, said, said, one.picture, one.owner)
    apart = resample(two)["global"]["overall"] - resample(one)["global"]["overall"]
    assert apart.mean() == pytest.approx(100 * 10 / 600, abs=0.1)
    assert apart.std() == pytest.approx(100 * (10 / 600 / 600) ** 0.5, rel=0.15)
    assert (apart >= 0).all()


def test_a_comparison_with_few_seeds(small: dict[str, Any], tmp_path: Path) -> None:
    """One seed: over pictures; `best` is not what the last test said; a run without predictions leaves none."""
    words, settings = ["promptfl", "fedclip"], {**small, "rounds": 1}
    made = fedtailor.compare(words, settings, out=tmp_path / "it").summary
    assert made["differences"]["against"] == "promptfl"
    rows = made["differences"]["rows"]
    assert list(rows) == ["zeroshot", "fedclip"]
    assert rows["fedclip"]["interval"] == "pictures"
    for part in ("global", "personal"):
        found = rows["fedclip"][part]["overall"]
        mine, its = (made["rows"][i][part]["overall"]["mean"] for i in (2, 1))
        assert found["mean"] == pytest.approx(mine - its, abs=1e-3)
        assert found["low"] <= found["mean"] <= found["high"]
    assert "bootstrap over test pictures" in difference_notes(made)[0]
    assert "± is a 95% bootstrap over test pictures" in (tmp_path / "it" / "table.md").read_text()

    best = fedtailor.compare(words, settings, out=tmp_path / "it", number="best").summary
    assert best["differences"]["rows"]["fedclip"]["interval"] is None
    assert best["differences"]["rows"]["fedclip"]["global"]["overall"]["low"] is None

    (tmp_path / "it" / "fedclip" / "seed-0" / FILE).unlink()
    assert read_predictions(tmp_path / "it" / "fedclip" / "seed-0") is None
    less = fedtailor.compare(words, settings, out=tmp_path / "it", against="zeroshot").summary
    assert less["differences"]["rows"]["fedclip"]["interval"] is None
    assert less["differences"]["rows"]["promptfl"]["interval"] == "pictures"
    assert any("No interval" in line for line in difference_notes(less))
    with pytest.raises(UserError, match="unknown row 'promptfll'; did you mean 'promptfl'"):
        fedtailor.compare(words, settings, against="promptfll")


def test_with_one_method_it_is_against_zero_shot(small: dict[str, Any]) -> None:
    made = fedtailor.compare(["promptfl"], {**small, "rounds": 1}).summary
    assert made["differences"]["against"] == "zeroshot"
    assert made["differences"]["rows"]["promptfl"]["interval"] is None, "without a folder nothing is kept"
    alone = {key: value for key, value in small.items() if key not in ("batch", "lr")}
    assert fedtailor.compare(["zeroshot"], alone).summary["differences"] is None
