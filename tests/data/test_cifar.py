"""Fake CIFAR folders in the true formats: the python version as of Python 2 and of today, and the binary version."""

import pickle
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fedtailor.base.errors import UserError
from fedtailor.data.dataset import Dataset
from fedtailor.data.datasets.cifar import PAPER10, cifar10, cifar100, unpickle

NAMES = ["air_plane", "cat"]


def planes(count: int, start: int) -> NDArray[np.uint8]:
    """Picture i is start + i in red, twice that in green and 7 in blue; its first red pixel is 250."""
    made = np.empty((count, 3, 1024), dtype=np.uint8)
    value = start + np.arange(count)
    made[:, 0], made[:, 1], made[:, 2] = value[:, None], 2 * value[:, None], 7
    made[:, 0, 0] = 250
    return made.reshape(count, 3072)


def dump(path: Path, content: object, protocol: int = 4) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pickle.dumps(content, protocol=protocol))


def short(text: str) -> bytes:
    """A `str` of Python 2 in a pickle."""
    return b"U" + bytes([len(text)]) + text.encode()


def old_pickle(data: NDArray[np.uint8], labels: list[int]) -> bytes:
    """What Python 2 and the numpy of 2009 wrote: byte strings, `numpy.core.multiarray`, flags as 0 and 1."""
    raw = data.tobytes()
    kind = b"cnumpy\ndtype\n" + short("u1") + b"K\x00K\x01\x87R(K\x03" + short("|") + b"NNNJ" + b"\xff" * 4
    kind += b"J" + b"\xff" * 4 + b"K\x00tb"
    shape = b"K" + bytes([len(data)]) + b"M\x00\x0c\x86"
    array = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85" + short("b") + b"\x87R(K\x01" + shape
    array += kind + b"\x89T" + struct.pack("<I", len(raw)) + raw + b"tb"
    numbers = b"](" + b"".join(b"K" + bytes([label]) for label in labels) + b"e"
    return b"\x80\x02}(" + short("data") + array + short("labels") + numbers + b"u."


def write_cifar10(folder: Path, form: str) -> None:
    folder.mkdir(parents=True)
    for number, name in enumerate([*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]):
        data, labels = planes(2, 10 * number), [number % 2, 1]
        if form == "binary":
            rows = np.concatenate([np.array(labels, dtype=np.uint8)[:, None], data], axis=1)
            (folder / f"{name}.bin").write_bytes(rows.tobytes())
        elif form == "old":
            (folder / name).write_bytes(old_pickle(data, labels))
        else:
            dump(folder / name, {b"data": data, b"labels": labels}, protocol=2 if form == "protocol 2" else 4)
    if form == "binary":
        (folder / "batches.meta.txt").write_text("\n".join([*NAMES, ""]))
    else:
        dump(folder / "batches.meta", {"label_names": NAMES})


def assert_is_the_fake(dataset: Dataset) -> None:
    assert dataset.classes == ("air plane", "cat")
    assert dataset.train.labels is not None
    assert dataset.test.labels is not None
    assert dataset.train.labels.tolist() == [0, 1, 1, 1, 0, 1, 1, 1, 0, 1]
    assert dataset.test.labels.tolist() == [1, 1]
    picture = dataset.train.images.read(3)  # the second of the second batch
    assert picture.shape == (32, 32, 3)
    assert picture[0, 0].tolist() == [250, 22, 7]
    assert picture[31, 31].tolist() == [11, 22, 7]
    assert dataset.paper == PAPER10


@pytest.mark.parametrize("form", ["old", "protocol 2", "protocol 4", "binary"])
def test_cifar10_is_read_in_every_form(tmp_path: Path, form: str) -> None:
    write_cifar10(tmp_path / ("cifar-10-batches-bin" if form == "binary" else "cifar-10-batches-py"), form)
    assert_is_the_fake(cifar10(tmp_path))


def write_cifar100(root: Path, form: str, coarse: list[int]) -> None:
    for name in ("train", "test"):
        data, fine = planes(3, 0), [0, 1, 2]
        if form == "binary":
            rows = np.concatenate([np.array([coarse, fine], dtype=np.uint8).T, data], axis=1)
            folder = root / "cifar-100-binary"
            folder.mkdir(exist_ok=True)
            (folder / f"{name}.bin").write_bytes(rows.tobytes())
            (folder / "fine_label_names.txt").write_text("big_apple\nbee\noak\n")
        else:
            dump(root / "cifar-100-python" / name, {b"data": data, b"fine_labels": fine, b"coarse_labels": coarse})
            dump(root / "cifar-100-python" / "meta", {"fine_label_names": ["big_apple", "bee", "oak"]})


@pytest.mark.parametrize("form", ["python", "binary"])
def test_cifar100_has_super_classes(tmp_path: Path, form: str) -> None:
    write_cifar100(tmp_path, form, [4, 7, 4])
    dataset = cifar100(tmp_path)
    assert dataset.classes == ("big apple", "bee", "oak")
    assert dataset.coarse is not None
    assert dataset.coarse.tolist() == [4, 7, 4]
    assert dataset.train.labels is not None
    assert dataset.train.labels.tolist() == [0, 1, 2]
    assert dataset.train.images.read(2)[5, 5].tolist() == [2, 4, 7]


def test_cifar100_with_two_super_classes_for_a_class_is_refused(tmp_path: Path) -> None:
    write_cifar100(tmp_path, "python", [4, 7, 4])
    dump(
        tmp_path / "cifar-100-python" / "test",
        {b"data": planes(1, 0), b"fine_labels": [1], b"coarse_labels": [5]},
    )
    with pytest.raises(UserError, match="'bee' into two super-classes"):
        cifar100(tmp_path)


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return Path.write_text, (Path("pwned"), "x")


class EvilCodec:
    def __reduce__(self) -> tuple[Any, ...]:
        import _codecs

        return _codecs.encode, ("x", "rot13")


@pytest.mark.parametrize("evil", [Evil(), {"data": Evil()}, EvilCodec(), print, eval, np.load])
@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_a_pickle_that_calls_is_refused_and_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, evil: object, protocol: int
) -> None:
    monkeypatch.chdir(tmp_path)
    dump(tmp_path / "batch", evil, protocol)
    with pytest.raises(UserError, match="it asks"):
        unpickle(tmp_path / "batch")
    assert not (tmp_path / "pwned").exists()


def test_damaged_files_are_named(tmp_path: Path) -> None:
    write_cifar10(tmp_path / "cifar-10-batches-py", "protocol 4")
    batch = tmp_path / "cifar-10-batches-py" / "data_batch_3"
    good = batch.read_bytes()
    for broken in (b"", good[:100], b"\x80\x04K\x01.", pickle.dumps({"data": [1], "labels": [1]}), b"<html>"):
        batch.write_bytes(broken)
        with pytest.raises(UserError, match="data_batch_3"):
            cifar10(tmp_path)
    dump(batch, {"data": planes(2, 0), "labels": [0]})
    with pytest.raises(UserError, match="one whole number per picture"):
        cifar10(tmp_path)
    dump(batch, {"data": planes(2, 0), "labels": [0, 2]})
    with pytest.raises(UserError, match=r"outside 0\.\.1"):
        cifar10(tmp_path)


def test_a_truncated_binary_is_named(tmp_path: Path) -> None:
    write_cifar10(tmp_path / "cifar-10-batches-bin", "binary")
    path = tmp_path / "cifar-10-batches-bin" / "test_batch.bin"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(UserError, match=r"test_batch\.bin holds 6145 bytes, not a multiple of 3073"):
        cifar10(tmp_path)


@pytest.mark.parametrize(("load", "folder"), [(cifar10, "cifar-10-batches-py"), (cifar100, "cifar-100-python")])
def test_missing_files_say_what_to_download_and_where(tmp_path: Path, load: Any, folder: str) -> None:
    with pytest.raises(UserError, match="University of Toronto") as error:
        load(tmp_path)
    assert str(tmp_path / folder) in str(error.value)
