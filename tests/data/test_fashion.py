import gzip
import struct
from pathlib import Path

import numpy as np
import pytest

from fedtailor.base.errors import UserError
from fedtailor.data.datasets.fashion import fashion_mnist


def write_idx(path: Path, magic: int, shape: tuple[int, ...], body: bytes, *, packed: bool = True) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    raw = struct.pack(f">{1 + len(shape)}I", magic, *shape) + body
    path.write_bytes(gzip.compress(raw) if packed else raw)


def write_fashion(folder: Path, *, packed: bool = True) -> None:
    end = ".gz" if packed else ""
    for name in ("train", "t10k"):
        grey = np.arange(3 * 28 * 28, dtype=np.uint32).astype(np.uint8).tobytes()
        write_idx(folder / f"{name}-images-idx3-ubyte{end}", 2051, (3, 28, 28), grey, packed=packed)
        write_idx(folder / f"{name}-labels-idx1-ubyte{end}", 2049, (3,), bytes([9, 0, 4]), packed=packed)


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("folder", ["fashion-mnist", "FashionMNIST/raw"])
def test_the_four_files_are_read(tmp_path: Path, folder: str, packed: bool) -> None:
    write_fashion(tmp_path / folder, packed=packed)
    dataset = fashion_mnist(tmp_path)
    assert (dataset.classes[0], dataset.classes[9]) == ("T-shirt/top", "Ankle boot")
    assert dataset.train.labels is not None
    assert dataset.train.labels.tolist() == [9, 0, 4]
    picture = dataset.test.images.read(0)
    assert picture.shape == (28, 28, 3)
    assert picture[1, 2].tolist() == [30, 30, 30]
    assert dataset.order is not None
    assert dataset.order[0] == 8


def test_wrong_files_are_named(tmp_path: Path) -> None:
    folder = tmp_path / "fashion-mnist"
    write_fashion(folder)
    labels = folder / "train-labels-idx1-ubyte.gz"
    write_idx(labels, 2051, (3,), bytes(3))
    with pytest.raises(UserError, match="begins with 2051, not 2049"):
        fashion_mnist(tmp_path)
    write_idx(labels, 2049, (4,), bytes(3))
    with pytest.raises(UserError, match=r"should hold \[4\] values and holds 3 bytes"):
        fashion_mnist(tmp_path)
    write_idx(labels, 2049, (2,), bytes(2))
    with pytest.raises(UserError, match="do not belong together"):
        fashion_mnist(tmp_path)
    for broken in (b"", b"no gzip", gzip.compress(b"ab"), gzip.compress(bytes(99))[:-9]):
        labels.write_bytes(broken)
        with pytest.raises(UserError, match="train-labels"):
            fashion_mnist(tmp_path)


def test_missing_files_say_what_to_download_and_where(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="Zalando") as error:
        fashion_mnist(tmp_path)
    assert str(tmp_path / "fashion-mnist") in str(error.value)
