"""A site looks its pictures over before it joins; what it finds stays there."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

import pytest

from fedtailor.base.errors import UserError
from fedtailor.flower import own_pictures
from fedtailor.flower.client import SiteFolder, run_client
from fedtailor.flower.init import init
from fedtailor.flower.own_pictures import look_over

PATIENT = "patient-0417-born-1950.png"


@pytest.fixture
def site(pictures: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Path:
    caplog.set_level(logging.INFO, "fedtailor")
    return Path(shutil.copytree(pictures, tmp_path / "site"))


def test_all_is_well(site: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It looks once, and again when something has changed."""
    for _ in range(2):
        look_over(f"folder:{site}", tmp_path / "state")
    told = [record.message for record in caplog.records]
    assert told == [
        "pictures: 48 to train on, 36 to test on; looking them over",
        "pictures: 48 to train on, 36 to test on, as they were when they were last looked over",
    ]
    (site / "train" / "red_dot" / "00.png").unlink()
    look_over(f"folder:{site}", tmp_path / "state")
    assert caplog.records[-1].message == "pictures: 47 to train on, 36 to test on; looking them over"


def test_a_damaged_picture_is_named_here(site: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (site / "train" / "red_dot" / PATIENT).write_bytes(b"\x89PNG\r\n\x1a\n and no more")
    for _ in range(2):  # and not taken for seen
        caplog.clear()
        look_over(f"folder:{site}", tmp_path / "state")
        assert f"1 {own_pictures.UNREADABLE}: " in caplog.text
        assert PATIENT in caplog.text
        assert "data.broken=skip; in others this site cannot take part" in caplog.text


def test_a_heap_without_labels(site: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    heap = tmp_path / "heap"
    (heap / "train").mkdir(parents=True)
    for path in (site / "train" / "red_dot").iterdir():
        shutil.copy(path, heap / "train")
    look_over(f"folder:{heap}", tmp_path / "state")
    assert "24 to train on, 0 to test on" in caplog.text
    assert not [record for record in caplog.records if record.levelno > logging.INFO]


@pytest.mark.parametrize("case", ["unreadable", "nothing to train on", "empty"])
def test_it_does_not_join_with_what_cannot_be_used(site: Path, tmp_path: Path, case: str) -> None:
    told = "has test/ but no train/"
    if case == "unreadable":
        told = "none of the 84 pictures of .* can be read"
        for path in site.rglob("*.png"):
            path.write_bytes(b"no picture")
    elif case == "nothing to train on":
        shutil.rmtree(site / "train")
    else:
        shutil.rmtree(site)
        site.mkdir()
        told = "has no pictures to train on"
    init(tmp_path / "fed", 1, ["127.0.0.1"])
    home = SiteFolder.open(tmp_path / "fed", 0)
    with pytest.raises(UserError, match=told):
        run_client(home, f"folder:{site}")
    assert not (home.folder / "flwr").exists()
