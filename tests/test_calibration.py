"""Calibration: a temperature, and a confidence to be unsure below, of pictures that nothing else has seen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import fedtailor
from conftest import Call
from fedtailor.base.errors import UserError
from fedtailor.core.types import OWN
from fedtailor.data.export import write_sites
from fedtailor.data.federation import set_aside
from fedtailor.evaluation.calibration import calibrate, calibration_error, confidence, temperature, unsure_below
from fedtailor.settings.run import make_run
from fedtailor.simulation.build import build, deal

Settings = dict[str, Any]


def drawn(T: float, n: int = 4000, classes: int = 5, seed: int = 0) -> tuple[torch.Tensor, np.ndarray]:
    """Logits that are T times as large as labels drawn by them would have."""
    rng = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(n, classes, generator=rng)
    labels = torch.multinomial(logits.softmax(dim=1), 1, generator=rng).flatten()
    return T * logits, labels.numpy()


@pytest.mark.parametrize("T", [0.3, 1.0, 4.0])
def test_temperature_is_found(T: float) -> None:
    """Broken: the temperature is not the one that undoes how much too sure the logits are."""
    logits, labels = drawn(T)
    assert temperature(logits.double(), torch.from_numpy(labels)) == pytest.approx(T, rel=0.08)


def test_temperature_is_the_best() -> None:
    """Broken: another temperature has a smaller cross-entropy."""
    logits, labels = drawn(3.0, n=60)
    y = torch.from_numpy(labels)
    loss = {T: torch.nn.functional.cross_entropy(logits.double() / T, y).item() for T in np.linspace(0.5, 8, 200)}
    best = min(loss, key=lambda T: loss[T])
    assert temperature(logits.double(), y) == pytest.approx(best, abs=8 / 200)


def test_calibration_helps() -> None:
    """Broken: overconfident logits are as wrong about themselves after as before, or accuracy changes."""
    logits, labels = drawn(4.0)
    found = calibrate(logits, labels)
    assert found.ece_before > 20
    assert found.ece_after < 5
    assert found.accuracy == pytest.approx(100 * (logits.argmax(1).numpy() == labels).mean())
    assert found.pictures == 4000


def test_ece_is_of_pictures_that_were_not_fitted() -> None:
    """Broken: a few pictures seem better calibrated than such a fit is on others: each half is judged by the other.

    One half is always right and one always wrong, both quite sure: what fits one half is wrong about the other.
    """
    labels = np.zeros(40, np.int64)
    logits = torch.zeros(40, 2)
    logits[::2, 0], logits[1::2, 1] = 3.0, 3.0
    found = calibrate(logits, labels)
    fitted = calibration_error(confidence(logits.double(), found.temperature), np.arange(40) % 2 == 0)
    assert fitted < 5
    assert found.ece_after > 45


def test_ece_by_hand() -> None:
    """np: in [.6, .667) 2 of 2 right at .65: gap .7; in [.933, 1] 1 of 2 right at .95: gap .9. (.7 + .9) / 4 = 40%."""
    sure = np.array([0.65, 0.65, 0.95, 0.95])
    assert calibration_error(sure, np.array([True, True, True, False])) == pytest.approx(40)
    assert calibration_error(np.array([1.0]), np.array([True])) == 0


def test_unsure_by_hand() -> None:
    """Going up: wrong +1, wrong +2, right +1, wrong +2, right, right, right: highest first after the second."""
    sure = np.array([0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8])
    right = np.array([False, False, True, False, True, True, True])
    assert unsure_below(sure, right) == pytest.approx(0.35)
    assert unsure_below(sure, np.ones(7, bool)) == 0
    assert unsure_below(sure, np.zeros(7, bool)) == pytest.approx(0.9)
    assert unsure_below(sure[::-1], right[::-1]) == pytest.approx(0.35), "in any order"
    assert unsure_below(np.full(3, 0.5), np.array([False, True, True])) == 0, "equally sure, on the same side"
    assert unsure_below(np.ones(2), np.zeros(2, bool)) == 0, "nothing is below all there is"


@given(st.lists(st.tuples(st.floats(0.01, 0.99), st.booleans()), min_size=1, max_size=30))
def test_unsure_is_wrong_more_often(pairs: list[tuple[float, bool]]) -> None:
    """Broken: answers are marked that are right at least as often as wrong."""
    sure, right = (np.array(values) for values in zip(*pairs, strict=True))
    below = sure < unsure_below(sure, right)
    assert not below.any() or right[below].mean() < 0.5


def test_all_right() -> None:
    """Broken: without an error to learn from, a model becomes as sure as numbers allow."""
    found = calibrate(torch.tensor([[2.0, 0.0], [0.0, 2.0], [3.0, 0.0]]), np.array([0, 1, 0]))
    assert found.temperature == pytest.approx(1 / 20, rel=1e-3)
    assert (found.unsure, found.unsure_right) == (0.0, None)
    assert calibrate(torch.tensor([[2.0, 0.0]]), np.array([1])).pictures == 1


# --- the pictures ---------------------------------------------------------------------------------------------------


def test_what_is_set_aside(small: Settings) -> None:
    """Broken: a picture is trained on and calibrated by, or the test set is other than without."""
    plain, kept = (build(make_run("promptfl", {**small, **more})) for more in ({}, {"calibrate": 0.2}))
    before, after = plain.federation, kept.federation
    assert plain.aside is None
    assert kept.aside is not None
    for k, (share, was) in enumerate(zip(after.shares, before.shares, strict=True)):
        assert not np.intersect1d(share.train, after.aside[k]).size
        assert np.array_equal(np.union1d(share.train, after.aside[k]), np.sort(was.train))
        assert np.array_equal(share.test, was.test)
        assert len(kept.client_data[k]) == len(share.train)
    sizes = [len(part) for part in after.aside]
    assert sum(sizes) == len(kept.aside.labels) == round(0.2 * 24) + round(0.2 * 16) + round(0.2 * 8)
    labels = np.asarray(after.dataset.train.labels)
    assert np.array_equal(kept.aside.labels, labels[np.concatenate(after.aside)])
    assert [len(part) for part in kept.aside.parts] == sizes
    assert np.array_equal(kept.tests.labels, plain.tests.labels)


def test_never_the_test_set(small: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Broken: the temperature is fitted to test pictures."""
    seen: list[np.ndarray] = []
    fit = calibrate
    monkeypatch.setattr(
        "fedtailor.evaluation.calibration.calibrate", lambda logits, y: seen.append(y) or fit(logits, y)
    )
    run = make_run("promptfl", {**small, "calibrate": 0.2})
    fedtailor.run(run, out=tmp_path / "run")
    shared, own = seen
    aside = build(run).aside
    assert aside is not None
    assert np.array_equal(shared, aside.labels)
    assert sorted(own) == sorted(np.concatenate([aside.labels[part] for part in aside.parts]))


def test_validation_pictures_serve_too(small: Settings, tmp_path: Path) -> None:
    """Broken: pictures that are kept out of training already are not used, or not said to be those of the scores."""
    fedtailor.run("promptfl", {**small, "rounds": 1, "data.validation": 0.2}, out=tmp_path / "run")
    facts = fedtailor.load(tmp_path / "run").facts.calibration
    assert facts.shared is not None
    assert facts.shared.pictures == 10
    assert "that the scores are of too (data.validation=0.2)" in facts.why
    card = (tmp_path / "run/model/README.md").read_text()
    assert f"temperature {facts.shared.temperature:.3f}" in card
    assert f"{facts.shared.ece_before:.2f}% before and {facts.shared.ece_after:.2f}% after" in card


def test_both(small: Settings) -> None:
    """Broken: with validation and calibration pictures, some are both."""
    run = make_run("promptfl", {**small, "data.validation": 0.2, "calibrate": 0.2})
    federation, _ = deal(run)
    assert federation.held is not None
    assert not np.intersect1d(federation.held, np.concatenate(federation.aside)).size
    experiment = build(run)
    assert experiment.aside is not None
    assert experiment.aside is not experiment.tests


def test_a_method_of_one_place(small: Settings, tmp_path: Path) -> None:
    """Broken: central training trains on what it is calibrated by."""
    experiment = build(make_run("central", {**small, "calibrate": 0.2}))
    assert len(experiment.client_data[OWN]) == 48 - 10
    result = fedtailor.run("central", {**small, "rounds": 1, "calibrate": 0.2}, out=tmp_path / "run")
    fits = fedtailor.load(result.folder or "").facts.calibration
    assert fits.shared is not None
    assert fits.personal is None, "no client has a model of its own"


def test_refused(small: Settings, tmp_path: Path) -> None:
    """Broken: calibration is left out without a word where it cannot be."""
    with pytest.raises(UserError, match="engine=flower keeps to themselves"):
        make_run("promptfl", {**small, "calibrate": 0.2, "engine": "flower"})
    with pytest.raises(UserError, match="less than 1"):
        make_run("promptfl", {**small, "calibrate": 1.0})
    federation, _ = deal(make_run("promptfl", {**small, "calibrate": 0.2}))
    with pytest.raises(UserError, match=r"data\.calibrate keeps training images out"):
        write_sites(federation, tmp_path / "sites")
    lone = set_aside(deal(make_run("promptfl", {**small, "clients": 1}))[0], 0.97, 0)
    with pytest.raises(UserError, match=r"data\.calibrate=0\.2 of 48 training images leaves nothing"):
        set_aside(lone, 0.2, 0)


def test_unsure_without_calibration(call: Call, small: Settings, pictures: Path, tmp_path: Path) -> None:
    """Broken: a model that was never calibrated says how sure it may be."""
    fedtailor.run("promptfl", {**small, "rounds": 1}, out=tmp_path / "run")
    done = call("predict", str(tmp_path / "run"), str(pictures), "--unsure")
    assert done.code == 2
    assert "this one is not; run it with calibrate=0.1" in done.err
    assert fedtailor.load(tmp_path / "run").temperature(None) == 1.0
