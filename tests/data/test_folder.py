from pathlib import Path

import pytest
from toys import paint, write

from fedtailor.base.errors import UserError
from fedtailor.data.dataset import FileImages, Split
from fedtailor.data.datasets.own import folder


def paths(split: Split) -> tuple[str, ...]:
    assert isinstance(split.images, FileImages)
    return split.images.paths


def test_train_and_test_folders(tmp_path: Path) -> None:
    paint(tmp_path / "train/red_fox/b.PNG")
    paint(tmp_path / "train/red_fox/a.jpg")
    paint(tmp_path / "test/badger/c.png")
    write(tmp_path / "train/red_fox/notes.txt", "not a picture")
    dataset = folder(tmp_path)
    assert dataset.classes == ("badger", "red fox")
    assert paths(dataset.train) == ("train/red_fox/a.jpg", "train/red_fox/b.PNG")
    assert dataset.train.labels is not None
    assert dataset.train.labels.tolist() == [1, 1]
    assert paths(dataset.test) == ("test/badger/c.png",)


def test_without_parts_every_fifth_is_for_testing(tmp_path: Path) -> None:
    for name in ("fox", "badger"):
        for number in range(6):
            paint(tmp_path / f"{name}/{number}.png")
    dataset = folder(tmp_path)
    assert paths(dataset.test) == ("badger/4.png", "fox/4.png")
    assert len(dataset.train) == 10


def test_classes_txt_gives_the_order(tmp_path: Path) -> None:
    paint(tmp_path / "train/fox/a.png")
    write(tmp_path / "classes.txt", "fox", "", "badger")
    assert folder(tmp_path).classes == ("fox", "badger")
    write(tmp_path / "classes.txt", "badger")
    with pytest.raises(UserError, match="has the class 'fox', which"):
        folder(tmp_path)
    write(tmp_path / "classes.txt", "fox", "fox")
    with pytest.raises(UserError, match="twice"):
        folder(tmp_path)


def test_a_heap_is_unlabelled(tmp_path: Path) -> None:
    paint(tmp_path / "train/a.png")
    with pytest.raises(UserError, match=r"names no classes; write their names into .*classes\.txt"):
        folder(tmp_path)
    write(tmp_path / "classes.txt", "fox", "badger")
    dataset = folder(tmp_path)
    assert dataset.train.labels is None
    assert (len(dataset.train), len(dataset.test)) == (1, 0)
    paint(tmp_path / "test/fox/t.png")
    dataset = folder(tmp_path)
    assert dataset.test.labels is not None
    assert dataset.test.labels.tolist() == [0]
    (tmp_path / "classes.txt").unlink()
    assert folder(tmp_path).classes == ("fox",)


def test_test_pictures_need_labels(tmp_path: Path) -> None:
    paint(tmp_path / "train/fox/a.png")
    paint(tmp_path / "train/b.png")
    paint(tmp_path / "test/c.png")
    with pytest.raises(UserError, match=r"c\.png has no label"):
        folder(tmp_path)


def test_a_folder_without_pictures_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is not a folder"):
        folder(tmp_path / "nowhere")
    write(tmp_path / "train/fox/scan.nii", "")
    with pytest.raises(UserError, match=r"no pictures to train on; their names must end in \.bmp"):
        folder(tmp_path)
    (tmp_path / "train").rename(tmp_path / "test")
    with pytest.raises(UserError, match="test/ but no train/"):
        folder(tmp_path)
