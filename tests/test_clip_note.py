"""The bundled CLIP was made for drawn figures: who gives it photographs is told so, once, where results are read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from conftest import Call
from fedtailor.data.dataset import Dataset
from fedtailor.data.datasets.drawn import CLASSES
from fedtailor.settings.run import make_run
from fedtailor.simulation.build import ONLY_DRAWN, with_clip_note
from world import dataset

SAID = "take backbone=openai/clip-vit-base-patch16"


def words_of(settings: dict[str, Any]) -> list[str]:
    return [f"{key}={value}" for key, value in settings.items()]


def test_photographs_on_the_bundled_clip(small: dict[str, Any], tmp_path: Path, call: Call) -> None:
    """Broken: numbers near chance come out, and nobody says that this CLIP has never seen a photograph."""
    words = words_of({key: value for key, value in small.items() if key != "backbone"} | {"rounds": 1})
    answer = call("run", "promptfl", *words, "--out", "one")
    assert answer.out.count(SAID) == 1
    assert json.loads((tmp_path / "one/result.json").read_text())["notes"] == [ONLY_DRAWN]
    assert SAID in (tmp_path / "one/run.toml").read_text()
    assert call("compare", "promptfl", "zeroshot", *words, "--out", "two").out.count(SAID) == 1
    assert json.loads((tmp_path / "two/table.json").read_text())["notes"] == [ONLY_DRAWN]
    assert SAID in (tmp_path / "two/table.md").read_text()


def test_another_clip_is_not_warned_of(small: dict[str, Any], call: Call) -> None:
    assert SAID not in call("run", "promptfl", *words_of({**small, "rounds": 1}), "--out", "one").out


def test_drawn_data_and_networks_from_scratch() -> None:
    """Broken: the first run of a new user, on drawn data or its exported files, warns of photographs."""
    photos: Dataset = dataset()
    nothing = photos.test.subset(np.empty(0, np.int64))
    figures = Dataset("csv:sites.csv", CLASSES[3:5], photos.template, nothing, nothing)
    assert with_clip_note(make_run(), photos).notes == (ONLY_DRAWN,)
    assert with_clip_note(make_run(), figures).notes == ()
    assert with_clip_note(make_run("scratch-fedavg"), photos).notes == ()
