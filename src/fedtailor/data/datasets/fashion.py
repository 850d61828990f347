"""Fashion-MNIST, from its four idx files."""

import gzip
import zlib
from pathlib import Path

import numpy as np

from ...base.errors import UserError
from ..dataset import ArrayImages, Dataset, Split
from ..paper import PaperPreprocess, Pixels
from .files import PHOTO

NAMES = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")
ORDER = (8, 1, 7, 5, 9, 3, 0, 2, 4, 6)  # head to tail, as in CAPT
PAPER = PaperPreprocess(mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5), resize="bilinear")

FOLDERS = ("fashion-mnist", "FashionMNIST/raw")


def fashion_mnist(root: Path) -> Dataset:
    train, test = read_split(root, "train"), read_split(root, "t10k")
    return Dataset("fashion-mnist", NAMES, PHOTO, train, test, order=ORDER, paper=PAPER)


def read_split(root: Path, name: str) -> Split:
    images_path, labels_path = find(root, f"{name}-images-idx3-ubyte"), find(root, f"{name}-labels-idx1-ubyte")
    grey, labels = idx(images_path, 3), idx(labels_path, 1).astype(np.int64)
    if len(grey) != len(labels) or (len(labels) and labels.max() >= len(NAMES)):
        raise UserError(f"{images_path} and {labels_path} do not belong together; download both again")
    return Split(ArrayImages(np.repeat(grey[..., np.newaxis], 3, axis=-1)), labels)


def find(root: Path, name: str) -> Path:
    paths = [root / folder / f"{name}{suffix}" for folder in FOLDERS for suffix in (".gz", "")]
    if found := next(filter(Path.is_file, paths), None):
        return found
    download = "the four files of Fashion-MNIST from Zalando Research's fashion-mnist repository on GitHub"
    raise UserError(f"{paths[0]} is missing; download {download} into {paths[0].parent}")


def idx(path: Path, axes: int) -> Pixels:
    """Four bytes of magic (2048 for bytes, plus the axes), four per axis, then the bytes themselves; all big-endian."""
    try:
        raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise UserError(f"{path} is damaged ({error}); download it again") from error
    head, magic = 4 + 4 * axes, 2048 + axes
    found = np.frombuffer(raw[:head].ljust(head, b"\0"), dtype=">u4").tolist()
    if found[0] != magic:
        raise UserError(f"{path} begins with {found[0]}, not {magic}: this is another kind of file; download it again")
    if len(raw) - head != int(np.prod(found[1:], dtype=object)):
        raise UserError(f"{path} should hold {found[1:]} values and holds {len(raw) - head} bytes; download it again")
    return np.frombuffer(raw, dtype=np.uint8, offset=head).reshape(found[1:])
