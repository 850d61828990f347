"""What `python -m benchmarks faults` tries on the command line, where it is read: a sentence, and at once."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
from benchmarks.faults.clips import CLIPS, open_clip, openai
from benchmarks.faults.settings import SETTINGS
from benchmarks.faults.tables import GOOD, TABLES
from PIL import Image

from fedtailor.base.errors import UserError
from fedtailor.clip.load import load
from fedtailor.data import open_dataset
from fedtailor.settings.keys import parse
from fedtailor.settings.run import make_run, read_toml
from fedtailor.simulation.build import find_device
from tiny import VIT, tiny_folder

# What no setting tells alone: of the data, the CLIP or the device, or only after training.
LATER = tuple(
    f"promptfl {word}" for word in ("lr=1e30", "backbone.device", "clients=", "tuner.length", "data.template={} w")
)
ALONE = [words for words in SETTINGS if not " ".join(words).startswith(LATER)]


@pytest.fixture(autouse=True)
def at_once() -> Iterator[None]:
    """A minute is for ever."""

    def end(*_: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, end)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("words", [pytest.param(words, id=" ".join(words)[:60]) for words in ALONE])
def test_settings(words: tuple[str, ...]) -> None:
    method, *rest = words
    with pytest.raises(UserError) as told:
        make_run(method, parse(rest))
    assert len(str(told.value)) < 2000


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A CLIP with heads of 64, as OpenAI's layout takes for granted."""
    shape = replace(VIT, vision_width=64, vision_heads=1, text_width=64, text_heads=1)
    return tiny_folder(tmp_path_factory.mktemp("sound"), shape)


def test_what_is_spoilt_is_sound(sound: Path, tmp_path: Path) -> None:
    """Broken: the tests below pass whatever is wrong."""
    folder = Path(shutil.copytree(sound, tmp_path / "clip"))
    digest = load(str(folder)).digest
    openai()(folder)
    assert load(str(folder)).digest == digest
    open_clip({"model_cfg": {"quick_gelu": True}})(Path(shutil.copytree(sound, tmp_path / "other")))
    assert load(str(tmp_path / "other")).digest == digest
    assert make_run("promptfl", parse(["tuner.length=8"])).rounds
    read_all_of(lay_out(tmp_path / "table", GOOD))


@pytest.mark.parametrize("fault", CLIPS)
def test_clips(fault: str, sound: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(sound, tmp_path / "clip"))
    CLIPS[fault](folder)
    with pytest.raises(UserError) as told:
        load(str(folder))
    assert len(str(told.value)) < 2000


def lay_out(folder: Path, text: str | bytes) -> Path:
    folder.mkdir()
    (folder / "loop").symlink_to("loop")
    (folder / "table.csv").write_bytes(text if isinstance(text, bytes) else text.encode())
    for part, name in product(("train", "test"), ("red", "green", "blue")):
        (folder / "pictures" / part / name).mkdir(parents=True)
        for i in range(4):
            Image.new("RGB", (8, 8), name).save(folder / "pictures" / part / name / f"{i}.png")
    return folder / "table.csv"


def read_all_of(table: Path) -> None:
    dataset = open_dataset(f"csv:{table}")
    for split in (dataset.train, dataset.test):
        assert split.images.fingerprint
        for i in range(len(split)):
            split.images.read(i)


@pytest.mark.parametrize("fault", TABLES)
def test_tables(fault: str, tmp_path: Path) -> None:
    table = lay_out(tmp_path / "table", TABLES[fault])
    with pytest.raises(UserError) as told:
        read_all_of(table)
    assert len(str(told.value)) < 12_000


def test_sixty_thousand_classes(tmp_path: Path) -> None:
    """Broken: each name is looked for among all."""
    table = lay_out(tmp_path / "table", GOOD)
    names = ["red", "green", "blue", *(f"class {i}" for i in range(60_000))]
    (table.parent / "classes.txt").write_text("\n".join(names))
    assert len(open_dataset(f"csv:{table}").classes) == 60_003
    (table.parent / "classes.txt").write_text("\n".join([*names, "red"]))
    with pytest.raises(UserError, match="names the class 'red' twice"):
        open_dataset(f"csv:{table}")


@pytest.mark.parametrize("name", ["meta", "nowhere:9", "cuda:99"])
def test_devices(name: str) -> None:
    """Broken: a device that computes nothing is found out after minutes, by a traceback."""
    with pytest.raises(UserError, match=f"backbone.device={name}: "):
        find_device(name)


@pytest.mark.parametrize("level", ["class", "site"])
def test_names_that_are_no_text(level: str, tmp_path: Path) -> None:
    """Broken: a tokenizer's or a log's own error, in the middle of a run."""
    odd = os.fsdecode(b"odd\xff")
    for site, name in product(("one", odd if level == "site" else "two"), ("fox", odd if level == "class" else "owl")):
        (tmp_path / site / "train" / name).mkdir(parents=True)
        for i in range(5):
            Image.new("RGB", (8, 8), "red").save(tmp_path / site / "train" / name / f"{i}.png")
    with pytest.raises(UserError, match=r"the name 'odd\\udcff' is not text in UTF-8; rename its folder"):
        open_dataset(f"folder:{tmp_path}")


def test_an_edited_about(tmp_path: Path) -> None:
    """Broken: what a run.toml says of itself is taken for what it should be."""
    path = tmp_path / "run.toml"
    for text in ("[about]\noutside = 3", '[about]\noutside = ["x"]', '[about]\noutside = [["method", "a"]]'):
        path.write_text(f'[method]\nname = "promptfl"\n{text}\n')
        with pytest.raises(UserError, match=r"about\.outside is a list of"):
            read_toml(path)
    path.write_text('about = 3\n[method]\nname = "promptfl"\n')
    with pytest.raises(UserError, match="about is a group, got 3"):
        read_toml(path)
