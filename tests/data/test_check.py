"""`fedtailor data check`: everything that will not be used or is likely wrong; and runs without what cannot be read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from toys import paint, write

import fedtailor
from conftest import Call
from fedtailor.base.errors import UserError
from fedtailor.data import check_dataset, open_dataset
from fedtailor.data.check import LONELY, Checked
from fedtailor.settings.run import make_run
from fedtailor.simulation.build import deal


def found(checked: Checked) -> dict[str, tuple[int, bool]]:
    return {finding.what: (finding.count, finding.wrong) for finding in checked.findings}


def tell(checked: Checked, what: str) -> tuple[str, ...]:
    return next(finding.examples for finding in checked.findings if finding.what == what)


@pytest.fixture
def good(tmp_path: Path) -> Path:
    """Two classes, no two pictures alike."""
    root, value = tmp_path / "photos", 0
    for part, count in (("train", 4), ("test", 2)):
        for label in ("cat", "dog"):
            for number in range(count):
                paint(root / part / label / f"{number}.png", value := value + 1)
    return root


def test_all_is_well(good: Path) -> None:
    told: list[tuple[str, int, int]] = []
    checked = check_dataset(f"folder:{good}", progress=lambda *step: told.append(step))
    assert (checked.ok, checked.findings) == (True, [])
    assert checked.facts == {"train": 8, "test": 4, "classes": 2, "sites": 0}
    assert told == [("reading images", done, 12) for done in range(1, 13)]


def test_files_that_are_not_used(good: Path) -> None:
    """Broken: half of the pictures are in a format or a place that nobody reads, and nobody says so."""
    for name in ("train/cat/a.heic", "train/cat/b.NEF", "train/notes.txt", "classes.txt"):
        write(good / name, "cat", "dog")
    paint(good / "loose.png", 90)
    paint(good / "more/cat/c.png", 91)
    checked = check_dataset(f"folder:{good}")
    assert found(checked) == {
        "pictures of a format that is not read": (2, True),
        "other files, not read": (1, False),
        "pictures outside the class folders, not used": (2, True),
    }
    assert tell(checked, "other files, not read") == ("train/notes.txt",)
    assert not checked.ok


def test_other_files_alone_are_no_mistake(good: Path) -> None:
    write(good / "README.md", "mine")
    assert check_dataset(f"folder:{good}").ok


def test_classes(good: Path) -> None:
    """Broken: "Cat" beside "cat" halves a class, and an empty or untested one shows only in the numbers."""
    paint(good / "train/Cat/9.png", 90)
    paint(good / "test/Cat/9.png", 91)
    paint(good / "train/owl/9.png", 92)
    (good / "train/newt").mkdir()
    checked = check_dataset(f"folder:{good}")
    assert found(checked) == {
        "classes whose names differ only in case or blanks": (1, True),
        "classes without any picture": (1, True),
        "classes without a test picture": (1, True),
    }
    assert tell(checked, "classes whose names differ only in case or blanks") == ("'Cat' = 'cat'",)
    assert tell(checked, "classes without any picture") == ("newt",)
    assert tell(checked, "classes without a test picture") == ("owl",)


def test_copies(tmp_path: Path) -> None:
    """Broken: a test picture that is trained on, under another name or in another format, goes unseen."""
    places = [f"{site}/{part}/{label}" for site in ("north", "south") for part in ("train", "test") for label in "ab"]
    for value, place in enumerate(places):
        paint(tmp_path / place / "1.png", value)
    assert check_dataset(f"folder:{tmp_path}").findings == []
    paint(tmp_path / "north/train/a/copy.png", 250)
    paint(tmp_path / "north/test/a/copy.bmp", 250)
    paint(tmp_path / "south/train/b/x.png", 251)
    paint(tmp_path / "north/train/b/x.png", 251)
    paint(tmp_path / "north/train/b/y.png", 252)
    paint(tmp_path / "north/train/b/z.png", 252)
    checked = check_dataset(f"folder:{tmp_path}")
    torn, spread, twice = "in training and in test", "at several sites", "there twice or more in one place"
    for what, wrong in ((torn, True), (spread, True), (twice, False)):
        assert found(checked)[f"pictures that are {what}"] == (1, wrong)
    assert tell(checked, f"pictures that are {torn}") == ("north/train/a/copy.png = north/test/a/copy.bmp",)


def test_what_cannot_be_read_or_opened(good: Path, tmp_path: Path) -> None:
    (good / "train/cat/1.png").write_bytes(b"broken")
    write(good.parent / "list.csv", "path,label", "photos/train/cat/0.png,cat", "gone.png,cat", "photos/x.gif,dog")
    assert found(check_dataset(f"folder:{good}")) == {"pictures that cannot be read": (1, True)}
    assert found(check_dataset(f"csv:{good.parent / 'list.csv'}"))["pictures that cannot be read"] == (2, True)
    checked = check_dataset("cub", tmp_path)
    assert "download" in checked.findings[0].what
    assert not checked.ok


def test_the_published_sizes(tmp_path: Path) -> None:
    for value, part in enumerate(("train", "val", "test")):
        paint(tmp_path / f"dtd/images/banded/{part}.jpg", 100 * value)
        write(tmp_path / f"dtd/labels/{part}1.txt", f"banded/{part}.jpg")
    told = found(check_dataset("dtd", tmp_path))
    assert {what: it for what, it in told.items() if "published" in what} == {
        "training pictures; as published there are 3760": (2, True),
        "test pictures; as published there are 1880": (1, True),
    }


def test_the_command(good: Path, call: Call) -> None:
    """Exit code 1, and a table or one JSON object, if something is likely wrong."""
    answer = call("data", "check", f"folder:{good}")
    assert (answer.code, "8 train, 4 test, 2 classes, 0 sites" in answer.out) == (0, True)
    (good / "train/cat/1.png").write_bytes(b"broken")
    write(good / "train/notes.txt", "mine")
    answer = call("data", "check", f"folder:{good}")
    assert answer.code == 1
    assert "wrong?" in answer.out
    assert "1.png" in answer.out.replace("\n", "")
    assert answer.out.index("wrong?") < answer.out.index("note ")
    answer = call("data", "check", f"folder:{good}", "--json")
    said = json.loads(answer.out)
    assert (answer.code, said["ok"], said["train"]) == (1, False, 8)
    unread = next(it for it in said["findings"] if it["what"] == "pictures that cannot be read")
    assert (unread["count"], unread["wrong"], len(unread["examples"])) == (1, True, 1)


# --- data.broken ----------------------------------------------------------------------------------------------------


@pytest.fixture
def torn(tmp_path: Path, pictures: Path) -> Path:
    """The small dataset with three training pictures that cannot be read: two that are none, one that is cut off."""
    root = tmp_path / "torn"
    for path in pictures.rglob("*.png"):
        (root / path.relative_to(pictures)).parent.mkdir(parents=True, exist_ok=True)
        Image.open(path).save(root / path.relative_to(pictures))
    label = sorted(path.name for path in (root / "train").iterdir())[0]
    for name in ("00", "01"):
        (root / "train" / label / f"{name}.png").write_bytes(b"torn")
    whole = (root / "train" / label / "02.png").read_bytes()
    (root / "train" / label / "02.png").write_bytes(whole[: len(whole) // 2])
    return root


def test_a_run_names_some_and_says_how_to_go_on(torn: Path, small: dict[str, Any]) -> None:
    """Broken: a user mends one file, starts again, and meets the next."""
    with pytest.raises(UserError, match=r"00\.png.*01\.png.*data\.broken=skip") as error:
        fedtailor.run("promptfl", {**small, "data": f"folder:{torn}"}, rounds=1)
    assert "maybe more" in str(error.value)


def test_a_run_without_them(torn: Path, small: dict[str, Any], tmp_path: Path) -> None:
    """Broken: data.broken=skip trains on a picture that cannot be read, or nobody can tell how many were left out."""
    settings = {**small, "data": f"folder:{torn}", "data.broken": "skip"}
    result = fedtailor.run("promptfl", settings, rounds=1, out=tmp_path / "run")
    assert json.loads((tmp_path / "run/data.json").read_text())["broken"] == 3
    assert "3 pictures cannot be read and are left out" in " ".join(result.summary["notes"])
    steps: list[str] = []
    federation, _ = deal(make_run("promptfl", settings), lambda what, done, total: steps.append(what))
    assert federation.sizes.sum() == 48 - 3
    assert "reading images" in steps


def test_nothing_left(tmp_path: Path) -> None:
    write(tmp_path / "train/cat/a.png", "torn")
    paint(tmp_path / "test/cat/a.png")
    with pytest.raises(UserError, match="none of the 1 training pictures can be read; the first"):
        open_dataset(f"folder:{tmp_path}", broken="skip")


def test_one_class(tmp_path: Path, small: dict[str, Any]) -> None:
    """Broken: a run on one class begins, and ends with 100% that mean nothing."""
    for part in ("train", "test"):
        paint(tmp_path / "photos" / part / "cat/1.png")
    name = f"folder:{tmp_path / 'photos'}"
    assert found(check_dataset(name))["one class only, and a model tells two or more apart"] == (1, True)
    alone = {**small, "data": name, "clients": 1, "data.min_size": 1}
    with pytest.raises(UserError, match="has one class, 'cat', and a model tells two or more apart"):
        fedtailor.run("promptfl", alone, rounds=1)


def test_names_of_one_site_alone(tmp_path: Path) -> None:
    """Worth knowing, since they may be another's under another name; no mistake by itself."""
    for number, place in enumerate(("north/cat", "north/dog", "south/cat", "south/Hund")):
        paint(tmp_path / place / "1.png", number)
    (tmp_path / "classes.txt").write_text("cat\ndog\nHund\n")
    checked = check_dataset(f"folder:{tmp_path}")
    assert tell(checked, LONELY) == ("dog (north)", "Hund (south)")
    assert found(checked)[LONELY] == (2, False)


def test_a_folder_called_like_a_picture_sign(good: Path, call: Call) -> None:
    """Broken: `folder:dog:` comes out with a dog's face in it."""
    good.rename(Path("dog"))
    assert "folder:dog: nothing wrong" in call("data", "check", "folder:dog").out
