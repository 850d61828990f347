"""CIFAR-10 and CIFAR-100, from their "python version" or their "binary version"."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ...base.errors import UserError
from ..dataset import ArrayImages, Dataset, Indices, Pixels, Split
from .files import PHOTO, need, read_lines, readable

PIXELS = 3 * 32 * 32
TORONTO = "from Alex Krizhevsky's page at the University of Toronto and unpack it"

Part = tuple[Pixels, Indices, Indices]  # planes (N, 3072), labels (N,), super-classes (N,) or empty


def cifar10(root: Path) -> Dataset:
    binary = root / "cifar-10-batches-bin"
    if binary.is_dir():
        download = f"the CIFAR-10 binary version {TORONTO}"
        names = read_lines(need(binary / "batches.meta.txt", download))

        def read(name: str) -> Part:
            return records(need(binary / f"{name}.bin", download), coarse=False)
    else:
        folder, download = root / "cifar-10-batches-py", f"the CIFAR-10 python version {TORONTO}"
        meta = need(folder / "batches.meta", download)
        names = texts(meta, "label_names")

        def read(name: str) -> Part:
            return batch(need(folder / name, download), "labels", None)

    train, _ = joined([read(f"data_batch_{number}") for number in range(1, 6)], len(names))
    test, _ = joined([read("test_batch")], len(names))
    return Dataset("cifar10", tuple(map(readable, names)), PHOTO, train, test, normal="cifar10")


def cifar100(root: Path) -> Dataset:
    binary = root / "cifar-100-binary"
    if binary.is_dir():
        download = f"the CIFAR-100 binary version {TORONTO}"
        names = read_lines(need(binary / "fine_label_names.txt", download))

        def read(name: str) -> Part:
            return records(need(binary / f"{name}.bin", download), coarse=True)
    else:
        folder, download = root / "cifar-100-python", f"the CIFAR-100 python version {TORONTO}"
        names = texts(need(folder / "meta", download), "fine_label_names")

        def read(name: str) -> Part:
            return batch(need(folder / name, download), "fine_labels", "coarse_labels")

    train, train_coarse = joined([read("train")], len(names))
    test, test_coarse = joined([read("test")], len(names))
    fine = np.concatenate([labels for split in (train, test) if (labels := split.labels) is not None])
    coarse = parents(fine, np.concatenate([train_coarse, test_coarse]), names)
    return Dataset("cifar100", tuple(map(readable, names)), PHOTO, train, test, coarse, normal="cifar100")


def joined(parts: list[Part], classes: int) -> tuple[Split, Indices]:
    planes, labels, coarse = (np.concatenate(column) for column in zip(*parts, strict=True))
    if len(labels) and not 0 <= labels.min() <= labels.max() < classes:
        raise UserError(f"a CIFAR label is outside 0..{classes - 1}; the files are damaged, download them again")
    pixels = np.ascontiguousarray(planes.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))
    return Split(ArrayImages(pixels), labels), coarse


def parents(fine: Indices, coarse: Indices, names: list[str]) -> Indices:
    """(C,) the super-class of each class, as the pictures' two labels tell."""
    found = np.full(len(names), -1, dtype=np.int64)
    found[fine] = coarse
    if (found < 0).any():
        name = names[int(np.argmin(found))]
        raise UserError(f"CIFAR-100 has no picture of {name!r}; the files are not complete, download them again")
    if (found[fine] != coarse).any():
        name = names[int(fine[np.argmax(found[fine] != coarse)])]
        raise UserError(f"CIFAR-100 puts {name!r} into two super-classes; the files are damaged, download them again")
    return found


def records(path: Path, coarse: bool) -> Part:
    """The binary version: label bytes (super-class first, if any), then the three colour planes."""
    size = 1 + coarse + PIXELS
    raw = np.fromfile(path, dtype=np.uint8)
    if len(raw) % size:
        raise UserError(f"{path} holds {len(raw)} bytes, not a multiple of {size}; download it again")
    rows = raw.reshape(-1, size)
    labels = rows[:, : 1 + coarse].astype(np.int64)
    return rows[:, 1 + coarse :], labels[:, -1], labels[:, 0] if coarse else labels[:0, 0]


def batch(path: Path, labels: str, coarse: str | None) -> Part:
    """The python version: a pickled dict of planes and label lists."""
    content = unpickle(path)
    planes = content.get("data")
    if not (isinstance(planes, np.ndarray) and planes.dtype == np.uint8 and planes.shape[1:] == (PIXELS,)):
        raise UserError(f"{path}: 'data' is not an array of uint8 (N, {PIXELS}); download it again")

    def numbers(key: str) -> Indices:
        values = np.asarray(content.get(key, ()))
        if values.shape != planes.shape[:1] or not (np.issubdtype(values.dtype, np.integer) or values.size == 0):
            raise UserError(f"{path}: {key!r} is not one whole number per picture; download it again")
        return values.astype(np.int64)

    return planes, numbers(labels), numbers(coarse) if coarse else np.empty(0, dtype=np.int64)


def texts(path: Path, key: str) -> list[str]:
    names = unpickle(path).get(key)
    if not isinstance(names, list) or not all(isinstance(name, str | bytes) for name in names):
        raise UserError(f"{path}: {key!r} is not a list of names; download it again")
    return [name.decode() if isinstance(name, bytes) else name for name in names]


def unpickle(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        try:
            content = Numbers(file, encoding="latin1").load()
        except UserError as error:
            raise UserError(f"{path} is not a CIFAR file: {error}; download it again from its source") from error
        # A damaged pickle fails in whichever step it happens to mislead.
        except (
            pickle.UnpicklingError,
            EOFError,
            ValueError,
            TypeError,
            LookupError,
            AttributeError,
            MemoryError,
        ) as error:
            raise UserError(f"{path} is damaged ({error}); download it again") from error
    if not isinstance(content, dict):
        raise UserError(f"{path} holds a {type(content).__name__}, not a dict; download it again")
    return {key.decode("latin1") if isinstance(key, bytes) else str(key): value for key, value in content.items()}


def plain_dtype(kind: str, align: object = False, copy: object = False) -> np.dtype[Any]:
    # Pickles of old write 0 and 1 for the flags, which numpy 2.4 warns about.
    return np.dtype(kind, bool(align), bool(copy))


def latin1(text: str, encoding: str) -> bytes:
    if encoding != "latin1":
        raise UserError(f"it asks for the codec {encoding!r}")
    return text.encode("latin1")


class Numbers(pickle.Unpickler):
    """Admits numbers, text, lists, dicts and numpy arrays, and calls nothing else: a pickle can name any function."""

    # Asking an array how it would be pickled finds numpy's own function under both its old and its new address.
    admitted: dict[tuple[str, str], Callable[..., Any]] = {  # noqa: RUF012 (read only)
        ("numpy.core.multiarray", "_reconstruct"): np.empty(0).__reduce__()[0],  # type: ignore[dict-item]
        ("numpy._core.multiarray", "_reconstruct"): np.empty(0).__reduce__()[0],  # type: ignore[dict-item]
        ("numpy", "ndarray"): np.ndarray,
        ("numpy", "dtype"): plain_dtype,
        ("_codecs", "encode"): latin1,
    }

    def find_class(self, module: str, name: str) -> Callable[..., Any]:
        try:
            return self.admitted[module, name]
        except KeyError:
            raise UserError(f"it asks to call {module}.{name}, which is refused") from None
