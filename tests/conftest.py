"""What all tests share: caches in temporary folders, one thread, a tiny CLIP and a handful of pictures."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import fedtailor
import posted  # noqa: F401  # adds engine=posted
from export_models import model_folder
from fedtailor.cli import main
from fedtailor.data.datasets import drawn
from pages import strange_data
from tiny import RESNET, tiny_folder

CLASSES = {"red_dot": (24, 12), "green_dot": (16, 12), "blue_dot": (8, 12)}  # training and test pictures


def pytest_collection_finish() -> None:
    """What is imported by now stays. The feature cache collects garbage with each new file, and need not look there."""
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def own_folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No test touches the caches or data of the machine, waits for the disk, or has threads that wait for others."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    own = tmp_path_factory.getbasetemp()
    shared = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own  # workers encode no picture twice
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.fsync", lambda _: None)  # nobody cuts the power here
        patch.setattr(drawn, "drawn", cache(drawn.drawn))  # the default dataset, drawn once
        patch.setenv("FEDTAILOR_CACHE", str(shared / "cache"))
        patch.setenv("FEDTAILOR_DATA", str(tmp_path_factory.mktemp("data")))
        yield
    torch.set_num_threads(threads)


@dataclass(frozen=True)
class Answer:
    code: int
    out: str
    err: str


Call = Callable[..., Answer]


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Call:
    """`fedtailor …` in this process, in an empty folder, on a terminal 100 wide."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")

    def go(*words: str) -> Answer:
        monkeypatch.setattr(sys, "argv", ["fedtailor", *words])
        code: Any = 0
        try:
            main()
        except SystemExit as end:
            code = end.code
        out, err = capsys.readouterr()
        return Answer(int(code or 0), out, err)

    return go


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint folder of a tiny random CLIP."""
    return tiny_folder(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A `folder:` dataset of three colours, the training part with a tail."""
    root, rng = tmp_path_factory.mktemp("pictures") / "dots", np.random.default_rng(0)
    for channel, (name, sizes) in enumerate(CLASSES.items()):
        for part, size in zip(("train", "test"), sizes, strict=True):
            folder = root / part / name
            folder.mkdir(parents=True)
            for i in range(size):
                picture = rng.integers(0, 90, (32, 32, 3))
                picture[..., channel] += 130
                Image.fromarray(picture.astype(np.uint8)).save(folder / f"{i:02}.png")
    return root


@pytest.fixture(scope="session")
def small(pictures: Path, tiny: Path) -> dict[str, Any]:
    """Settings of a run that takes a moment: three clients, two of them a round."""
    return {
        "data": f"folder:{pictures}",
        "backbone": str(tiny),
        "clients": 3,
        "threads": 1,
        "fraction": 0.7,
        "rounds": 3,
        "every": 1,
        "batch": 4,
        "lr": 0.05,
        "data.alpha": 1.0,
        "data.min_size": 2,
        "data.min_test": 1,
    }


@pytest.fixture(scope="session")
def clips(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Checkpoint folders of both kinds."""
    return {"vit": tiny, "resnet": tiny_folder(tmp_path_factory.mktemp("resnet"), RESNET)}


@pytest.fixture(scope="session")
def model_of(clips: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """`model_of("promptfl", "text_prompt", "vit")`: a model folder with random parameters, which nobody changes."""

    @cache
    def made(method: str, tuner: str, clip: str = "vit", **more: Any) -> Path:
        return model_folder(tmp_path_factory.mktemp("models") / "model", clips[clip], method, tuner, **more)

    return made


@pytest.fixture(scope="session")
def picture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A square one, which every library crops alike."""
    path = tmp_path_factory.mktemp("picture") / "one.png"
    Image.fromarray(np.random.default_rng(2).integers(0, 255, (48, 48, 3)).astype(np.uint8)).save(path)
    return path


@pytest.fixture(scope="session")
def strange(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of runs: "one", finished, whose classes and sites have names that no page may take for its own text, and
    "two", which differs in its method."""
    table, runs = strange_data(tmp_path_factory.mktemp("strange")), tmp_path_factory.mktemp("runs")
    brief = {"backbone": str(tiny), "threads": 1, "rounds": 2, "every": 1, "batch": 4, "lr": 0.05}
    for name, method in (("one", "promptfl"), ("two", "fedavg")):
        settings = {**brief, "data": f"csv:{table}", "tuner": "text_prompt"}
        fedtailor.run(method, settings, out=runs / name)
    return runs
