"""CIFAR-10 and CIFAR-100, from their "python version" or their "binary version"."""

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ...base.errors import UserError
from ..dataset import ArrayImages, Dataset, Indices, Split
from ..paper import PaperPreprocess, Pixels
from .files import PHOTO, need, read_lines, readable

PIXELS = 3 * 32 * 32
TORONTO = "from Alex Krizhevsky's page at the University of Toronto and unpack it"
# CAPT's and FedPuReL's codes normalise by the dataset's own statistics, and only then resize.
PAPER10 = PaperPreprocess(mean=(0.4914, 0.4822, 0.4465), std=(0.2023, 0.1994, 0.2010), resize="late")
PAPER100 = PaperPreprocess(mean=(0.5071, 0.4865, 0.4409), std=(0.2673, 0.2564, 0.2762), resize="late")

Part = tuple[Pixels, Indices]  # colour planes (N, 3072); labels (N, 1), or super-classes and classes (N, 2)


def cifar10(root: Path) -> Dataset:
    files = ("cifar-10-batches-bin/batches.meta.txt", "cifar-10-batches-py/batches.meta")
    names, read = find_version(root, "CIFAR-10", *files, "label_names", ("labels",))
    (train, _), (test, _) = read(*(f"data_batch_{number}" for number in range(1, 6))), read("test_batch")
    return Dataset("cifar10", tuple(map(readable, names)), PHOTO, train, test, paper=PAPER10)


def cifar100(root: Path) -> Dataset:
    files = ("cifar-100-binary/fine_label_names.txt", "cifar-100-python/meta")
    names, read = find_version(root, "CIFAR-100", *files, "fine_label_names", ("coarse_labels", "fine_labels"))
    (train, labels), (test, test_labels) = read("train"), read("test")
    coarse = parents(np.concatenate([labels, test_labels]), names)
    return Dataset("cifar100", tuple(map(readable, names)), PHOTO, train, test, coarse, paper=PAPER100)


def find_version(
    root: Path, title: str, binary: str, python: str, key: str, columns: tuple[str, ...]
) -> tuple[list[str], Callable[..., tuple[Split, Indices]]]:
    """The class names and a function that reads files (a split, all labels), of the version that is there.
    `binary` and `python` are the versions' files of class names, `key` and `columns` are keys of the python version."""
    is_binary = (root / binary).parent.is_dir()
    download = f"the {title} {'binary' if is_binary else 'python'} version {TORONTO}"
    meta = need(root / (binary if is_binary else python), download)
    names = read_lines(meta) if is_binary else texts(meta, key)

    def read(*batches: str) -> tuple[Split, Indices]:
        paths = [need(meta.with_name(f"{name}.bin" if is_binary else name), download) for name in batches]
        parts = [records(path, len(columns)) if is_binary else batch(path, columns) for path in paths]
        planes, labels = map(np.concatenate, zip(*parts, strict=True))
        if len(labels) and not 0 <= labels[:, -1].min() <= labels[:, -1].max() < len(names):
            raise UserError(f"a CIFAR label is outside 0..{len(names) - 1}; the files are damaged, download them again")
        pixels = np.ascontiguousarray(planes.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))
        return Split(ArrayImages(pixels), labels[:, -1]), labels

    return names, read


def parents(labels: Indices, names: list[str]) -> Indices:
    """(C,) the super-class of each class, as the pictures' two labels tell."""
    coarse, fine = labels.T
    found = np.full(len(names), -1, dtype=np.int64)
    found[fine] = coarse
    if (found < 0).any():
        name = names[int(np.argmin(found))]
        raise UserError(f"CIFAR-100 has no picture of {name!r}; the files are not complete, download them again")
    if len(twice := fine[found[fine] != coarse]):
        name = names[twice[0]]
        raise UserError(f"CIFAR-100 puts {name!r} into two super-classes; the files are damaged, download them again")
    return found


def records(path: Path, columns: int) -> Part:
    """The binary version: label bytes, then the three colour planes."""
    raw, size = np.fromfile(path, dtype=np.uint8), columns + PIXELS
    if len(raw) % size:
        raise UserError(f"{path} holds {len(raw)} bytes, not a multiple of {size}; download it again")
    rows = raw.reshape(-1, size)
    return rows[:, columns:], rows[:, :columns].astype(np.int64)


def batch(path: Path, columns: tuple[str, ...]) -> Part:
    """The python version: a pickled dict of planes and label lists."""
    content = unpickle(path)
    planes = content.get("data")
    if not (isinstance(planes, np.ndarray) and planes.dtype == np.uint8 and planes.shape[1:] == (PIXELS,)):
        raise UserError(f"{path}: 'data' is not an array of uint8 (N, {PIXELS}); download it again")
    labels = [np.asarray(content.get(key, ())) for key in columns]
    for key, values in zip(columns, labels, strict=True):
        if values.shape != planes.shape[:1] or not (np.issubdtype(values.dtype, np.integer) or values.size == 0):
            raise UserError(f"{path}: {key!r} is not one whole number per picture; download it again")
    return planes, np.stack(labels, axis=1).astype(np.int64)


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
        except Exception as error:  # a damaged pickle fails in whichever step it happens to mislead
            raise UserError(f"{path} is damaged ({error}); download it again") from error
    if not isinstance(content, dict):
        raise UserError(f"{path} holds a {type(content).__name__}, not a dict; download it again")
    return {key.decode("latin1") if isinstance(key, bytes) else str(key): value for key, value in content.items()}


def latin1(text: str, encoding: str) -> bytes:
    if encoding != "latin1":
        raise UserError(f"it asks for the codec {encoding!r}")
    return text.encode("latin1")


# Asking an array how it would be pickled finds numpy's own function, which has an old and a new address.
RECONSTRUCT: Any = np.empty(0).__reduce__()[0]
ADMITTED: dict[tuple[str, str], Callable[..., Any]] = {
    ("numpy.core.multiarray", "_reconstruct"): RECONSTRUCT,
    ("numpy._core.multiarray", "_reconstruct"): RECONSTRUCT,
    ("numpy", "ndarray"): np.ndarray,
    # Pickles of old write 0 and 1 for the flags, which numpy 2.4 warns about.
    ("numpy", "dtype"): lambda kind, *flags: np.dtype(kind, *map(bool, flags)),
    ("_codecs", "encode"): latin1,
}


class Numbers(pickle.Unpickler):
    """Admits numbers, text, lists, dicts and numpy arrays, and calls nothing else: a pickle can name any function."""

    def find_class(self, module: str, name: str) -> Callable[..., Any]:
        if (module, name) not in ADMITTED:
            raise UserError(f"it asks to call {module}.{name}, which is refused")
        return ADMITTED[module, name]
