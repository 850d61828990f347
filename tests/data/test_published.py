from pathlib import Path

import pytest
from toys import paint, write

from fedtailor.base.errors import UserError
from fedtailor.data.dataset import Split
from fedtailor.data.datasets.published import AUGMENTED, cub, dtd, imagenet_lt, resisc45, ucf101, words


def contents(split: Split) -> list[tuple[int, int]]:
    """(grey of the picture, label), so that both are seen to belong together."""
    assert split.labels is not None
    return [(int(split.images.read(index)[0, 0, 0]), int(label)) for index, label in enumerate(split.labels)]


def write_imagenet(root: Path) -> None:
    paint(root / "imagenet/train/n02/a.JPEG", 1)
    paint(root / "imagenet/train/n01/b.JPEG", 2)
    paint(root / "imagenet/val/c.JPEG", 3)
    write(root / "imagenet-lt/ImageNet_LT_train.txt", "train/n02/a.JPEG 1", "train/n01/b.JPEG 0")
    write(root / "imagenet-lt/ImageNet_LT_test.txt", "val/c.JPEG 1")
    write(root / "imagenet-lt/classnames.txt", "n02 great white shark", "n01 tench")


def test_imagenet_lt(tmp_path: Path) -> None:
    write_imagenet(tmp_path)
    dataset = imagenet_lt(tmp_path)
    assert dataset.classes == ("tench", "great white shark")
    assert contents(dataset.train) == [(1, 1), (2, 0)]
    assert contents(dataset.test) == [(3, 1)]
    assert dataset.paper == AUGMENTED


def test_imagenet_lists_that_contradict_the_names_are_refused(tmp_path: Path) -> None:
    write_imagenet(tmp_path)
    for line in ("train/n02/a.JPEG 0", "train/n02/a.JPEG 2", "train/n02/a.JPEG one"):
        write(tmp_path / "imagenet-lt/ImageNet_LT_train.txt", line)
        with pytest.raises(UserError, match="ImageNet_LT_train"):
            imagenet_lt(tmp_path)


def test_dtd_trains_on_train_and_validation(tmp_path: Path) -> None:
    for value, part in enumerate(("train", "val", "test")):
        name = ("banded/b", "polka-dotted/p", "banded/c")[value]
        paint(tmp_path / f"dtd/images/{name}.jpg", value)
        write(tmp_path / f"dtd/labels/{part}1.txt", f"{name}.jpg")
    dataset = dtd(tmp_path)
    assert dataset.classes == ("banded", "polka-dotted")
    assert contents(dataset.train) == [(0, 0), (1, 1)]
    assert contents(dataset.test) == [(2, 0)]
    assert dataset.template == "a photo of a {} pattern."
    write(tmp_path / "dtd/labels/test1.txt", "woven/w.jpg")
    with pytest.raises(UserError, match="'woven'"):
        dtd(tmp_path)


def test_resisc45_splits_evenly_by_name_or_by_lists(tmp_path: Path) -> None:
    for number in (1, 2, 3):
        paint(tmp_path / f"NWPU-RESISC45/dense_residential/dense_residential_00{number}.jpg", number)
    paint(tmp_path / "NWPU-RESISC45/airplane/airplane_001.jpg", 9)
    dataset = resisc45(tmp_path)
    assert dataset.classes == ("airplane", "dense residential")
    assert (contents(dataset.train), contents(dataset.test)) == ([(9, 0), (1, 1), (3, 1)], [(2, 1)])

    write(tmp_path / "resisc45-train.txt", "dense_residential/dense_residential_003.jpg")
    with pytest.raises(UserError, match="resisc45-test"):
        resisc45(tmp_path)
    write(tmp_path / "resisc45-test.txt", "airplane_001.jpg")
    dataset = resisc45(tmp_path)
    assert (contents(dataset.train), contents(dataset.test)) == ([(3, 1)], [(9, 0)])


def test_cub(tmp_path: Path) -> None:
    folder = tmp_path / "CUB_200_2011"
    paint(folder / "images/001.Black_footed_Albatross/a.jpg", 4)
    paint(folder / "images/002.Wren/b.jpg", 5)
    write(folder / "images.txt", "1 001.Black_footed_Albatross/a.jpg", "2 002.Wren/b.jpg")
    write(folder / "image_class_labels.txt", "1 1", "2 2")
    write(folder / "train_test_split.txt", "1 0", "2 1")
    write(folder / "classes.txt", "1 001.Black_footed_Albatross", "2 002.Wren")
    dataset = cub(tmp_path)
    assert dataset.classes == ("Black footed Albatross", "Wren")
    assert (contents(dataset.train), contents(dataset.test)) == ([(5, 1)], [(4, 0)])
    write(folder / "train_test_split.txt", "1 0")
    with pytest.raises(UserError, match="not about the same pictures"):
        cub(tmp_path)


def test_ucf101(tmp_path: Path) -> None:
    paint(tmp_path / "UCF-101-midframes/Apply_Eye_Makeup/v_ApplyEyeMakeup_g08_c01.jpg", 6)
    paint(tmp_path / "UCF-101-midframes/Yo_Yo/v_YoYo_g01_c01.jpg", 7)
    lists = tmp_path / "ucfTrainTestlist"
    write(lists / "classInd.txt", "1 ApplyEyeMakeup", "2 YoYo")
    write(lists / "trainlist01.txt", "ApplyEyeMakeup/v_ApplyEyeMakeup_g08_c01.avi 1")
    write(lists / "testlist01.txt", "YoYo/v_YoYo_g01_c01.avi")
    dataset = ucf101(tmp_path)
    assert dataset.classes == ("Apply Eye Makeup", "Yo Yo")
    assert (contents(dataset.train), contents(dataset.test)) == ([(6, 0)], [(7, 1)])


def test_camel_case_is_split_into_words() -> None:
    assert words("TaiChi") == ["Tai", "Chi"]


@pytest.mark.parametrize("load", [imagenet_lt, dtd, resisc45, cub, ucf101])
def test_missing_files_say_what_to_download_and_where(tmp_path: Path, load: object) -> None:
    with pytest.raises(UserError, match="is missing; download") as error:
        load(tmp_path)  # type: ignore[operator]
    assert str(tmp_path) in str(error.value)
