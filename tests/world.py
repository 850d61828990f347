"""A small federation on the tiny CLIP, built in memory: four clients, five classes, random pictures."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from _pytest.mark import ParameterSet

from fedtailor.clip.load import Checkpoint, load
from fedtailor.clip.model import Shape
from fedtailor.core.model import Tuner
from fedtailor.data.dataset import ArrayImages, Dataset, Split, histogram
from fedtailor.data.federation import federate
from fedtailor.data.groups import GROUPS
from fedtailor.data.partitions.iid import Iid
from fedtailor.methods import METHODS
from fedtailor.methods.released.relay import CarriedMomentum
from fedtailor.settings.run import GIVEN, Run, make_run
from fedtailor.simulation.build import Experiment, as_labelled, assemble
from fedtailor.tuners import TUNERS, tuner_names
from fedtailor.tuners.join import Join
from tiny import VIT, tiny_folder

NAMES = ("cat", "maple tree", "T-shirt/top", "dog", "a_b")
CLIENTS = 4
JOINS = ("text_prompt+visual_prompt", "coupled+class_prompt", "text_prompt+lora")
# For tuners whose defaults are larger than the tiny CLIP, or that draw no numbers by default.
SMALL = {
    "lora": {"tuner.dropout": 0.1},
    "visual_prompt": {"tuner.depth": 2, "tuner.mode": "dropped"},
    "resnet": {"tuner.width": 4, "tuner.size": 16},
}

# For methods whose own settings are long for a toy.
BRIEF = {
    "creff": {"method.m": 6, "method.match_steps": 5, "method.retrain_epochs": 3},
    "fedloge": {"method.steps": 20},
    "rucr": {"method.crt": 2, "method.crt_epochs": 3, "method.n": 4},
    "fedpurel": {"method.T_p": 2},
    "fedcopl": {"epochs": 2, "local.span": 4, "labels.refresh": 2, "tuner.text_prompt.length": 4},
}


def make_tuner(name: str, options: Mapping[str, Any]) -> Tuner:
    """A tuner by name; of a join, options stand under their part's name: {"lora": {"rank": 4}}."""
    parts = tuner_names(name)
    if len(parts) == 1:
        return TUNERS[name](**options)
    return Join(parts=tuple(TUNERS[part](**options.get(part, {})) for part in parts))


def combinations() -> list[tuple[str, str]]:
    """Every method with every tuner it allows; but for those whose clients train one after the other."""
    return [
        (name, tuner)
        for name, entry in METHODS.items()
        if not issubclass(entry.method, CarriedMomentum)
        for tuner in (entry.tuners or [*(t for t in TUNERS if t != "none"), *JOINS])
    ]


# Of methods that take any tuner, fedavg meets all of them in every run of the tests; the others these, and the rest in
# `pytest -m slow`.
SOME = ("text_prompt", "lora", "adapter", "text_prompt+visual_prompt", "resnet")


def under_law(combinations: Sequence[tuple[str, str]]) -> list[ParameterSet]:
    seldom = [m for m, entry in METHODS.items() if not entry.tuners and m != "fedavg"]
    return [
        pytest.param((m, t), id=f"{m}-{t}", marks=[pytest.mark.slow] if m in seldom and t not in SOME else [])
        for m, t in combinations
    ]


@cache
def dataset(per_class: int = 9) -> Dataset:
    rng = np.random.default_rng(5)
    labels = np.repeat(np.arange(len(NAMES)), per_class)

    def split(labels: np.ndarray) -> Split:
        # A tint for each class, so that there is something to learn.
        tint = np.linspace(0, 120, len(NAMES))[labels][:, None, None, None]
        noise = rng.integers(0, 130, (len(labels), 32, 32, 3))
        return Split(ArrayImages((noise + tint).astype(np.uint8)), labels.astype(np.int64))

    return Dataset("toy", NAMES, "a photo of a {}.", split(labels), split(labels[:: per_class // 3]))


@cache
def checkpoint(shape: Shape = VIT, seed: int = 0) -> Checkpoint:
    with tempfile.TemporaryDirectory() as folder:
        return load(str(tiny_folder(Path(folder), shape, seed)))


def settings(method: str, tuner: str, **more: Any) -> Run:
    small = {"rounds": 3, "clients": CLIENTS, "fraction": 0.6, "batch": 4, "lr": 0.01, "seed": 3, "every": 1}
    brief = BRIEF.get(method.removesuffix("-released"), {})
    if more.get("labels") == GIVEN:  # then a labeler's settings are no keys
        brief = {key: value for key, value in brief.items() if not key.startswith("labels.")}
    return make_run(method, {"tuner": tuner, **SMALL.get(tuner, {}), **brief, **small, **more})


def world(
    method: str = "fedavg", tuner: str = "text_prompt", shape: Shape = VIT, run: Run | None = None, **more: Any
) -> Experiment:
    run = run or settings(method, tuner, **more)
    held = 0.0 if run.data.server == "test" else run.data.server
    federation = as_labelled(run, federate(dataset(), Iid(), run.clients, run.seed, held))
    labels = dataset().train.labels
    assert labels is not None
    groups = GROUPS["capt"](histogram(labels, len(NAMES)))
    return assemble(run, federation, groups, checkpoint(shape))
