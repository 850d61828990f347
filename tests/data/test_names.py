from pathlib import Path

import numpy as np
import pytest
from toys import paint, toy, write

from fedtailor.base.errors import UserError
from fedtailor.data import for_server, for_site, with_classes
from fedtailor.data.dataset import FileImages, Split

CLASSES = ("red fox", "owl", "T-shirt/top", "badger")


def paths(split: Split) -> tuple[str, ...]:
    assert isinstance(split.images, FileImages)
    return split.images.paths


def labels(split: Split) -> list[int]:
    assert split.labels is not None
    return split.labels.tolist()


def test_a_server_needs_no_training_pictures(tmp_path: Path) -> None:
    paint(tmp_path / "test/owl/a.png")
    paint(tmp_path / "test/badger/b.png")
    name = f"folder:{tmp_path}"
    dataset = for_server(name)
    assert (dataset.name, dataset.classes, labels(dataset.test)) == (name, ("badger", "owl"), [0, 1])
    assert labels(dataset.train) == []
    write(tmp_path / "classes.txt", "owl", "T-shirt%2Ftop", "badger")
    dataset = for_server(name)
    assert (dataset.classes, labels(dataset.test)) == (("owl", "T-shirt/top", "badger"), [0, 2])


def test_a_server_with_class_names_needs_no_pictures(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="names no classes; write their names into"):
        for_server(f"folder:{tmp_path}")
    write(tmp_path / "classes.txt", "owl", "badger")
    dataset = for_server(f"folder:{tmp_path}")
    assert (dataset.classes, len(dataset.train), labels(dataset.test)) == (("owl", "badger"), 0, [])
    (tmp_path / "test").mkdir()
    assert labels(for_server(f"folder:{tmp_path}").test) == []
    with pytest.raises(UserError, match="is not a folder"):
        for_server(f"folder:{tmp_path / 'nowhere'}")


def test_a_server_s_training_pictures_are_read(tmp_path: Path) -> None:
    paint(tmp_path / "train/owl/a.png")
    assert labels(for_server(f"folder:{tmp_path}").train) == [0]


def test_a_server_s_table_needs_no_train_rows(tmp_path: Path) -> None:
    write(tmp_path / "list.csv", "path,label,split", "a.jpg,owl,test", "b.jpg,fox,test")
    dataset = for_server(f"csv:{tmp_path / 'list.csv'}")
    assert (labels(dataset.train), labels(dataset.test)) == ([], [1, 0])


def test_a_server_takes_datasets_by_name(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"dtd.* is missing; download") as error:
        for_server("dtd", tmp_path)
    assert str(tmp_path) in str(error.value)
    with pytest.raises(UserError, match="unknown dataset 'foldr"):
        for_server(f"foldr:{tmp_path}")


def test_a_site_holds_some_classes_in_its_own_order(tmp_path: Path) -> None:
    for name in ("red_fox/a", "T-shirt%2Ftop/b", "badger/c"):
        paint(tmp_path / f"train/{name}.png")
    paint(tmp_path / "test/owl/d.png")
    dataset = for_site(f"folder:{tmp_path}", None, CLASSES)
    assert dataset.classes == CLASSES
    assert paths(dataset.train) == ("train/T-shirt%2Ftop/b.png", "train/badger/c.png", "train/red_fox/a.png")
    assert (labels(dataset.train), labels(dataset.test)) == ([2, 3, 0], [1])
    (tmp_path / "test/owl/d.png").unlink()
    assert labels(for_site(f"folder:{tmp_path}", None, CLASSES).test) == []


def test_a_heap_is_all_that_a_site_needs(tmp_path: Path) -> None:
    paint(tmp_path / "train/a.png")
    dataset = for_site(f"folder:{tmp_path}", None, CLASSES)
    assert (dataset.classes, dataset.train.labels, labels(dataset.test)) == (CLASSES, None, [])
    paint(tmp_path / "test/owl/a.png")
    assert labels(for_site(f"folder:{tmp_path}", None, CLASSES).test) == [1]
    write(tmp_path / "list.csv", "path", "train/a.png")
    dataset = for_site(f"csv:{tmp_path / 'list.csv'}", None, CLASSES)
    assert (dataset.classes, dataset.train.labels, len(dataset.train)) == (CLASSES, None, 1)


def test_every_fifth_is_for_testing_only_where_there_is_no_train_folder(tmp_path: Path) -> None:
    for number in range(10):
        paint(tmp_path / f"with/train/owl/{number}.png")
        paint(tmp_path / f"without/owl/{number}.png")
    sizes = [
        (len(dataset.train), len(dataset.test))
        for part in ("with", "without")
        for dataset in [for_site(f"folder:{tmp_path / part}", None, CLASSES)]
    ]
    assert sizes == [(10, 0), (8, 2)]


def test_a_site_without_training_pictures_is_refused(tmp_path: Path) -> None:
    paint(tmp_path / "test/owl/a.png")
    with pytest.raises(UserError, match="test/ but no train/"):
        for_site(f"folder:{tmp_path}", None, CLASSES)
    (tmp_path / "train").mkdir()
    with pytest.raises(UserError, match="no pictures to train on"):
        for_site(f"folder:{tmp_path}", None, CLASSES)


def test_unknown_classes_are_named(tmp_path: Path) -> None:
    for name in ("train/bagder", "train/zebra", "train/owl", "test/heron"):
        paint(tmp_path / name / "a.png")
    (tmp_path / "train/empty").mkdir()  # hurts nobody
    message = r"pictures of 'bagder' \(did you mean 'badger'\?\), 'heron', 'zebra': none of the federation's 4 classes"
    with pytest.raises(UserError, match=message):
        for_site(f"folder:{tmp_path}", None, CLASSES)
    write(tmp_path / "list.csv", "path,label", "a.jpg,Owl")
    with pytest.raises(UserError, match=r"'Owl' \(did you mean 'owl'\?\):"):
        for_site(f"csv:{tmp_path / 'list.csv'}", None, CLASSES)


def test_under_keeps_pictures_sites_and_what_is_unlabelled() -> None:
    dataset = toy([2, 1], [1, 1], coarse=[0, 0])
    moved = with_classes(dataset, ["kind 1", "other", "kind 0"])
    assert (labels(moved.train), labels(moved.test)) == ([2, 2, 0], [2, 0])
    assert moved.train.images is dataset.train.images
    assert (moved.coarse, moved.order) == (None, None)
    at = Split(dataset.train.images, None, np.array([1, 0, 1]))
    nameless = with_classes(type(dataset)("n", ("kind 0",), "a {}.", at, at), ["x"])  # nothing of it is labelled
    assert (nameless.train.labels, nameless.classes) == (None, ("x",))
    assert nameless.train.sites is at.sites
