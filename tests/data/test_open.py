from pathlib import Path

import numpy as np
import pytest
from toys import paint, write

from fedtailor.base.errors import UserError
from fedtailor.data import DATASETS, default_root, open_dataset
from fedtailor.data.dataset import histogram
from fedtailor.data.datasets import drawn
from fedtailor.data.groups import profile


def write_folder(root: Path, sizes: dict[str, int]) -> str:
    for name, size in sizes.items():
        for number in range(size):
            paint(root / f"train/{name}/{number}.png")
        paint(root / f"test/{name}/0.png")
    return f"folder:{root}"


def test_unknown_names_get_a_hint() -> None:
    with pytest.raises(UserError, match="unknown dataset 'cifar-10'; did you mean 'cifar10'"):
        open_dataset("cifar-10")


def test_the_root_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FEDTAILOR_DATA", str(tmp_path))
    assert default_root() == tmp_path
    with pytest.raises(UserError, match="cifar-10-batches-py") as error:
        open_dataset("cifar10-lt")
    assert str(tmp_path) in str(error.value)
    monkeypatch.delenv("FEDTAILOR_DATA")
    assert default_root().parts[-2:] == ("fedtailor", "data")


@pytest.mark.parametrize("name", [name for name in DATASETS if not name.startswith("drawn")])
def test_no_dataset_opens_without_its_files(name: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is missing; download"):
        open_dataset(name, tmp_path)


def test_a_long_tail_by_name_and_by_factor(monkeypatch: pytest.MonkeyPatch) -> None:
    few = drawn.drawn(train=40, test=2)  # drawing them all takes a second each time
    monkeypatch.setattr(drawn, "drawn", lambda: few)
    plain, tailed = open_dataset("drawn"), open_dataset("drawn-lt", seed=3)
    C = len(plain.classes)
    assert tailed.train.labels is not None
    assert tailed.name == "drawn-lt"
    assert histogram(tailed.train.labels, C).tolist() == profile(len(plain.train) / C, C, 100).tolist()
    assert len(tailed.test) == len(plain.test)
    again, other = open_dataset("drawn", imbalance=100, seed=3), open_dataset("drawn-lt", seed=4)
    assert again.train.images.fingerprint == tailed.train.images.fingerprint != other.train.images.fingerprint
    assert len(open_dataset("drawn-lt", imbalance=1).train) == len(plain.train)


def test_any_labelled_dataset_can_be_thinned(tmp_path: Path) -> None:
    name = write_folder(tmp_path, {"a": 8, "b": 8, "c": 8})
    labels = open_dataset(name, imbalance=4).train.labels
    assert labels is not None
    assert np.bincount(labels).tolist() == [8, 4, 2]


def test_impossible_imbalances_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"1 \(as it is\) or more, such as 100, got 0\.01"):
        open_dataset("drawn", imbalance=0.01)
    with pytest.raises(UserError, match="got nan"):
        open_dataset("drawn", imbalance=float("nan"))
    with pytest.raises(UserError, match="brings its own long tail"):
        open_dataset("imagenet-lt", tmp_path, imbalance=100)
    paint(tmp_path / "train/a.png")
    write(tmp_path / "classes.txt", "a")
    with pytest.raises(UserError, match="have no labels"):
        open_dataset(f"folder:{tmp_path}", imbalance=10)
