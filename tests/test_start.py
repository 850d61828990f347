"""`fedtailor start`: what it finds, what it proposes and why, what it writes, and when it runs that."""

from __future__ import annotations

import json
import sys
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from conftest import Call
from fedtailor.base.errors import UserError
from fedtailor.data.gather import as_csv, gather
from fedtailor.data.survey import Survey, survey
from fedtailor.runs import proposal
from fedtailor.runs.proposal import PHOTOGRAPHS, Machine, propose
from fedtailor.runs.proposal_file import to_toml
from fedtailor.settings.run import read_toml

HERE, GPU, BARE = Machine("cpu", True, True), Machine("cuda", True, False), Machine("cpu", False, False)
DRAWN = "striped red heart", "plain purple ring"


def paint(path: Path, rng: np.random.Generator = np.random.default_rng(0)) -> None:  # noqa: B008  # one for all
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(rng.integers(0, 255, (6, 8, 3), np.uint8)).save(path)


def lay(root: Path, counts: dict[str, int]) -> Path:
    """So many pictures in each folder."""
    for folder, count in counts.items():
        for i in range(count):
            paint(root / folder / f"p{folder.replace('/', '-')}{i}.png")
    return root


def look(root: Path, *folders: str) -> Survey:
    return survey([root / folder for folder in folders] or [root], root / "out.csv")


# --- what is found --------------------------------------------------------------------------------------------------

PARTLY = {"unlabelled": 9, "labelled/cat": 3, "labelled/dog": 3}


@pytest.mark.parametrize(
    ("counts", "folders", "train", "test", "sites", "labelled", "left_out"),
    [
        ({"cat": 10, "dog": 5}, [], 12, 3, [], True, 0),
        ({"cat": 5, "dog": 5, ".": 2}, [], 8, 2, [], True, 2),  # a few strays
        ({"cat": 2, "dog": 2, ".": 9}, [], 9, 4, [], False, 0),  # more than strays
        (PARTLY, [], 9, 6, [], False, 0),
        ({**PARTLY, "labelled/cat": 10, "labelled/dog": 10}, [], 25, 4, [], True, 0),
        ({"cat": 5, "dog": 5, "Unsorted": 4}, [], 12, 2, [], True, 0),
        ({"cat": 5, "dog": 5, "Unsorted": 4, ".": 1}, [], 12, 2, [], True, 1),
        ({"train": 9, "train/cat": 5, "train/dog": 5}, [], 17, 2, [], True, 0),
        ({"train": 9, "train/cat": 1, "train/dog": 1, "test/cat": 2, "test/dog": 2}, [], 11, 4, [], True, 0),
        ({"train": 9, "test/cat": 2, "test/dog": 2}, [], 9, 4, [], False, 0),
        ({"train": 9, "train/cat": 2, "train/dog": 2}, [], 9, 4, [], False, 0),
        ({"a/cat": 5, "a/dog": 5, "b/cat": 5, "b/dog": 5}, [], 16, 4, ["a", "b"], True, 0),
        ({"a/cat": 5, "a/dog": 5, "b/cat": 5, "b/dog": 5}, ["a", "b"], 16, 4, ["a", "b"], True, 0),
        ({"a/cat": 3, "a/dog": 3, "b": 9, "c": 8}, ["a", "b", "c"], 17, 6, ["b", "c"], False, 0),
        ({"a/cat": 10, "a/dog": 10, "b": 9}, ["a", "b"], 25, 4, ["a", "b"], True, 0),
        ({"a/cat": 5, "a/dog": 5, "a": 1, "b/cat": 5, "b": 6}, ["a", "b"], 18, 3, ["a", "b"], True, 1),
        ({"a": 6, "a/cat": 2, "a/dog": 2, "b": 6, "b/cat": 2}, ["a", "b"], 12, 6, ["a", "b"], False, 0),
        ({"x/a/cat": 5, "x/a/dog": 5, "y/a/cat": 5}, ["x/a", "y/a"], 12, 3, ["x/a", "y/a"], True, 0),
    ],
)
def test_found(
    counts: dict[str, int],
    folders: list[str],
    train: int,
    test: int,
    sites: list[str],
    labelled: bool,
    left_out: int,
    tmp_path: Path,
) -> None:
    """Broken: a picture gets a label, a site or a side that its place does not say; or is lost without a word."""
    found = look(lay(tmp_path, counts), *folders)
    assert (len(found.dataset.train), len(found.dataset.test)) == (train, test)
    assert list(found.sites) == sites
    assert (found.counts is not None) is labelled
    assert found.document()["left_out"] == left_out
    assert found.dataset.classes == ("cat", "dog")
    if found.gathered and found.gathered.table:  # once it is written, a run reads the same
        (tmp_path / "out.csv").write_text(as_csv(found.gathered.table))
        again = gather([tmp_path / "out.csv"], tmp_path / "other.csv").dataset
        assert again.train.images.paths == found.dataset.train.images.paths  # type: ignore[attr-defined]
        assert np.array_equal(np.asarray(again.test.labels), np.asarray(found.dataset.test.labels))


@pytest.mark.parametrize(
    ("counts", "folders", "told"),
    [
        ({}, ["nowhere"], "there is no such folder or file"),
        ({"notes": 0}, [], "no pictures in"),
        ({".": 3}, [], "none of the 3 pictures"),
        ({"a": 3, "b": 3}, ["a", "b"], "If these folders are classes, give the folder that holds them"),
        ({"cat": 9}, [], "has one class, 'cat'"),
        ({"cat": 1, "dog": 1}, [], "too few of any class to hold some out"),
        (
            {"a/x/cat": 5, "a/y/cat": 5, "a/x/dog": 5, "a/y/dog": 5, "b/cat": 5},
            ["a", "b"],
            "holds several sites itself",
        ),
        (
            {"a/train/cat": 5, "a/test/cat": 2, "b/cat": 5, "b/dog": 5},
            ["a", "b"],
            "a is divided into train and test, b",
        ),
        ({"a/cat": 2}, ["a", "a/cat/pa-cat0.png"], "is a file; give several folders"),
        ({"a/cat": 2}, ["a/cat/pa-cat0.png"], "is no CSV table"),
        ({"x/p/a/cat": 2, "y/p/a/cat": 2}, ["x/p/a", "y/p/a"], "have the same name"),
    ],
)
def test_nothing_to_run(counts: dict[str, int], folders: list[str], told: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as error:
        look(lay(tmp_path, counts), *folders)
    assert told in str(error.value)


def test_labelled_pictures_alone_where_each_site_has_some(tmp_path: Path) -> None:
    """Broken: a site would have nothing to train on, or its unlabelled pictures are used where that did worse."""
    lay(tmp_path, {"a/cat": 15, "a/dog": 15, "b": 9, "c/cat": 5})
    assert chosen_labels(look(tmp_path, "a", "b")) == ("copl", None)
    assert chosen_labels(look(tmp_path, "a", "c")) == ("given", None), "all have a label"
    paint(tmp_path / "c/unlabelled/x.png")
    assert chosen_labels(look(tmp_path, "a", "c")) == ("given", 1)


def chosen_labels(found: Survey) -> tuple[str, float | None]:
    run = propose(found, HERE).run
    return run.labels.name, run.data.labelled


def test_pictures_are_looked_at(tmp_path: Path) -> None:
    lay(tmp_path, {"cat": 5, "dog": 10})
    (tmp_path / "cat/broken.jpg").write_bytes(b"no picture")
    found = look(tmp_path)
    assert found.unreadable == 1
    assert found.checked
    assert found.checked.sides == (6, 6, 6)
    assert found.imbalance == 8 / 5
    assert not found.tail


# --- what is proposed -----------------------------------------------------------------------------------------------

SITES = {"a/cat": 5, "a/dog": 5, "b/cat": 5, "b/dog": 5}
UNLABELLED = {"train": 9, "test/cat": 2, "test/dog": 2}
PARTLY_AT_BOTH = {"a/cat": 9, "a/dog": 9, "a/unlabelled": 3, "b/cat": 9, "b/dog": 1}
FIGURES = {f"{name}": 5 for name in DRAWN}


@pytest.mark.parametrize(
    ("counts", "machine", "said", "method", "labels", "backbone", "clients"),
    [
        (SITES, HERE, {}, "tailor", "given", PHOTOGRAPHS, 2),
        ({"cat": 5, "dog": 5}, HERE, {}, "tailor", "given", PHOTOGRAPHS, 1),
        (FIGURES, BARE, {}, "tailor", "given", "bundled", 1),
        ({**UNLABELLED, "train/cat": 1}, HERE, {}, "tailor", "copl", PHOTOGRAPHS, 1),
        (PARTLY_AT_BOTH, HERE, {}, "tailor", "given", PHOTOGRAPHS, 2),
        (PARTLY_AT_BOTH, HERE, {"labels": "copl"}, "tailor", "copl", PHOTOGRAPHS, 2),
        (PARTLY_AT_BOTH, HERE, {"method": "fedcopl"}, "fedcopl", "copl", PHOTOGRAPHS, 2),
        (UNLABELLED, HERE, {}, "promptfl", "copl", PHOTOGRAPHS, 1),
        (UNLABELLED, GPU, {}, "fedcopl", "copl", PHOTOGRAPHS, 1),
        (UNLABELLED, HERE, {"backbone": "bundled"}, "fedcopl", "copl", "bundled", 1),
        (UNLABELLED, HERE, {"method": "fedavg"}, "fedavg", "copl", PHOTOGRAPHS, 1),
        (SITES, HERE, {"method": "fedcopl"}, "fedcopl", "copl", PHOTOGRAPHS, 2),
        (SITES, HERE, {"data.alpha": 0.5, "clients": 3}, "tailor", "given", PHOTOGRAPHS, 3),
        (SITES, HERE, {"method": "capt", "method.last": False, "data.alpha": 0.5}, "capt", "given", PHOTOGRAPHS, 20),
    ],
)
def test_proposed(
    counts: dict[str, int],
    machine: Machine,
    said: dict[str, Any],
    method: str,
    labels: str,
    backbone: str,
    clients: int,
    tmp_path: Path,
) -> None:
    """Broken: what is proposed does not fit what was found, or the file says another run than the one proposed."""
    made = propose(look(lay(tmp_path / "my photos", counts)), machine, said)
    chosen = {choice.what: choice.value for choice in made.choices}
    tuner = made.run.tuner.name
    wanted = {"method": method, "labels": labels, "backbone": backbone, "tuner": tuner, "privacy": "none"}
    assert chosen == wanted
    assert made.run.clients == clients
    assert all(choice.why for choice in made.choices)
    assert {choice.what for choice in made.choices if choice.why == "as you said"} == {*said} & {*chosen}
    text = to_toml(made, "fedtailor run it.toml")
    (tmp_path / "it.toml").write_text(text)
    assert read_toml(tmp_path / "it.toml").document() == made.run.document()
    lines = [line for line in text.splitlines() if line and not line.startswith(("#", "["))]
    assert all("  # " in line for line in lines)


def test_reasons_follow_what_is_there(tmp_path: Path) -> None:
    """Broken: a tail, broken pictures or many of them make no difference to what is proposed."""
    root = lay(tmp_path, {"a/cat": 5, "a/dog": 5, "b/cat": 30, "b/dog": 5})
    (root / "a/cat/broken.png").write_bytes(b"")
    made = propose(look(root), HERE)
    assert "rare classes may lose" in made.choices[0].why
    assert made.run.data.broken == "skip"
    assert made.run.data.calibrate == 0
    many = propose(look(lay(tmp_path / "many", {"cat": 190, "dog": 190})), HERE)
    assert "rare classes" not in many.choices[0].why
    assert many.run.data.calibrate == 0.1


def test_data_are_what_was_looked_at(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="data= is given beside"):
        propose(look(lay(tmp_path, FIGURES)), HERE, {"data": "drawn"})


# --- the command ----------------------------------------------------------------------------------------------------


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    return lay(tmp_path / "photos", FIGURES)


def test_nobody_to_ask(photos: Path, call: Call) -> None:
    """Broken: a script starts a run that it did not ask for, or writes over what is there."""
    done = call("start", "photos", "rounds=3", "--out", "here/mine.toml")
    assert (done.code, done.err) == (0, "")
    assert done.out.endswith("written: here/mine.toml\nrun it: fedtailor run here/mine.toml\n")
    assert not Path("runs").exists()
    written = Path("here/mine.toml").read_text()
    assert tomllib.loads(written)["rounds"] == 3
    refused = call("start", "photos", "--out", "here/mine.toml")
    assert refused.code == 2
    assert "here/mine.toml is there already; give another --out, or --force" in refused.err
    assert Path("here/mine.toml").read_text() == written
    assert call("start", "photos", "--out", "here/mine.toml", "--force").code == 0
    assert tomllib.loads(Path("here/mine.toml").read_text())["rounds"] == 20


def test_a_table_is_not_written_over(call: Call, tmp_path: Path) -> None:
    lay(tmp_path, {f"{site}/{name}": 5 for site in "ab" for name in DRAWN})
    Path("mine.csv").write_text("mine")
    refused = call("start", "a", "b", "--out", "mine.toml")
    assert refused.code == 2
    assert "mine.csv is there already" in refused.err
    assert Path("mine.csv").read_text() == "mine"
    assert not Path("mine.toml").exists()


@pytest.mark.parametrize(
    ("answer", "code", "runs"), [("y", 0, True), ("n", 0, False), ("", 0, False), (None, 130, False)]
)
def test_somebody_to_ask(
    answer: str | None, code: int, runs: bool, photos: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    def said(*_: Any, **__: Any) -> str:
        if answer is None:
            raise KeyboardInterrupt
        if not answer:
            raise EOFError
        return answer

    monkeypatch.setattr(sys.modules["fedtailor.cli.start"], "at_a_terminal", lambda: True)  # not the verb of that name
    monkeypatch.setattr("rich.prompt.PromptBase.get_input", said)
    done = call("start", "photos", "rounds=1", "threads=1")
    assert done.code == code
    assert Path("runs").exists() is runs
    assert ("use it: fedtailor predict runs/tailor-folder-photos-s0 PICTURES" in done.out) is runs
    assert Path("fedtailor.toml").is_file()


def test_clip_cannot_be_had(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Broken: without what fetches CLIP, a run begins that cannot end, or nobody says what to install."""
    lay(tmp_path, {"photos/cat": 5, "photos/dog": 5})
    monkeypatch.setattr(proposal, "this_machine", lambda: BARE)
    told = json.loads(call("start", "photos", "--json").out)
    assert told["needs"] == proposal.HUB
    assert told["result"] is None
    assert told["written"] == ["fedtailor.toml"]
    assert [choice["what"] for choice in told["proposal"]] == ["method", "labels", "tuner", "backbone", "privacy"]
    assert "'.[hub]' && fedtailor run fedtailor.toml" in call("start", "photos", "--force").out
    refused = call("start", "photos", "--force", "--yes")
    assert refused.code == 2
    assert f"cannot be had yet; first: {proposal.HUB}" in refused.err


def test_nothing_there(call: Call) -> None:
    """Broken: who has no pictures yet is sent away, instead of being shown the drawn ones."""
    done = call("start", "--no-run")
    assert done.code == 0
    assert "figures will be drawn" in done.err
    document = tomllib.loads(Path("fedtailor.toml").read_text())
    assert document["data"]["name"] == "drawn-lt"
    assert document["clients"] == 20


def test_this_folder(photos: Path, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(photos)
    assert (
        f"folder:{photos}"
        in json.loads(call("start", "--no-run", "--json", "--out", "../it.toml").out)["found"]["data"]
    )


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--yes", "--no-run"], "--yes and --no-run are given; choose one"),
        (["photos", "--rounds", "3"], "settings are written without dashes: rounds=3"),
        (["photos", "rounds=x"], "rounds: input should be a valid integer"),
        (["photos", "mehtod=tailor"], "unknown key 'mehtod'; did you mean"),
        (["photos", "preset=tuned"], "preset= sets more than the file would show"),
        (["photos", "--out", "mine.csv"], "takes a file whose name ends in .toml"),
        (["fotos"], "fotos: there is no such folder or file"),
    ],
)
def test_mistakes(words: list[str], told: str, photos: Path, call: Call) -> None:
    done = call("start", *words)
    assert done.code == 2
    assert told in done.err
    assert not Path("fedtailor.toml").exists()
