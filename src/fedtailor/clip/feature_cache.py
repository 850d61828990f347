"""What a tuner leaves alone is computed once: image features, embedded patches, or activations below its first layer.

One .npy file holds one split of one dataset at one stage of one tower. Its name is a hash of all that it depends on. A
file is written under another name and moved into place whole, so that two processes may do so at once. The folder has a
budget: what was not used for longest makes room for what is new.
"""

import gc
import hashlib
import json
import math
import os
import re
import shutil
import tempfile
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import numpy as np
import torch
from numpy.lib import format as npy
from numpy.typing import NDArray
from torch import Tensor

from ..base.errors import UserError
from ..base.folders import cache_folder
from ..base.progress import ProgressFn
from ..data.dataset import Images, Indices
from ..data.preprocess import Preprocess
from .block import Rng
from .model import Clip
from .vision import ImageTower

FORMAT = "fedtailor cache 3"
HEADER = 128  # bytes that numpy writes before an array of a few axes
CHUNK = 16  # pictures encoded at once
BUDGET = 20  # GB of files in the folder, unless FEDTAILOR_CACHE_GB says otherwise
HALF = {"patches"}  # stages kept in fp16: a row for each patch, all of which are normalised before use
DAY = 24 * 3600 * 10**9
OURS = re.compile(r"[0-9a-f]{64}\.(npy|act)|[0-9a-f]{12}-\w+\.part")  # .act: of earlier versions, only to be removed

Array = NDArray[np.floating[Any]]
MAPPED: WeakValueDictionary[tuple[str, int], Array] = WeakValueDictionary()  # (file's name, id) of what is open here


def default_folder() -> Path:
    return cache_folder("features")


def budget() -> float:
    """How many bytes the folder may hold; 0: nothing is kept."""
    given = os.environ.get("FEDTAILOR_CACHE_GB") or str(BUDGET)
    with suppress(ValueError):
        if (size := float(given) * 1e9) >= 0:
            return size
    raise UserError(
        f"FEDTAILOR_CACHE_GB is {given!r}; it takes gigabytes, such as {BUDGET} or 0.5; 0 keeps nothing, inf all"
    )


class NotKept(UserWarning):
    """A split for which the cache has no room."""


@cache  # a comparison opens the same split for every run
def tell(message: str) -> None:
    warnings.warn(message, NotKept, stacklevel=3)


@dataclass(frozen=True)
class Encoder:
    """The frozen image tower as far as one stage, with the transform before it."""

    clip: Clip
    digest: str  # of the weights
    transform: Preprocess
    stage: str
    device: torch.device
    precision: torch.dtype | None = None

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(np.float16 if self.stage in HALF else np.float32)

    def key(self, images: Images) -> str:
        parts = [FORMAT, self.digest, images.fingerprint, repr(self.transform), self.stage, str(self.precision)]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()

    def chunks(self, images: Images, indices: Sequence[int] | Indices, rng: Rng = None) -> Iterator[Tensor]:
        for begin in range(0, len(indices), CHUNK):
            views = [self.transform(images.read(int(i)), rng) for i in indices[begin : begin + CHUNK]]
            yield self.encode(torch.stack(views))

    def encode(self, pixels: Tensor) -> Tensor:
        """A chunk of pixels, on the CPU; a picture comes out the same, to the bit, whichever others are beside it."""
        short = CHUNK - len(pixels)  # matrix products of other sizes round differently, so every chunk is a full one
        whole = torch.cat([pixels, pixels[-1:].expand(short, -1, -1, -1)]) if short else pixels
        with torch.no_grad(), torch.autocast(self.device.type, self.precision, enabled=self.precision is not None):
            values = encode_to_stage(self.clip.vision, whole.to(self.device), self.stage)[: len(pixels)].float().cpu()
        if self.stage not in HALF:
            return values
        half = values.half()
        if not half.isfinite().all():
            raise UserError(
                f"activations at the stage {self.stage!r} reach {values.abs().max():.3g}; they are kept in fp16, which "
                "ends at 65504. Try backbone.precision=fp32 if it is fp16; else this backbone's weights are damaged"
            )
        return half


def encode_to_stage(tower: ImageTower, pixels: Tensor, stage: str) -> Tensor:
    if stage != "features":
        return tower(pixels, "pixels", stage)
    # The read-out has one query a picture, and fused attention then rounds differently from thread to thread.
    below, threads = tower.stages[-3], torch.get_num_threads()
    x = tower(pixels, "pixels", below)
    torch.set_num_threads(1)
    try:
        return tower(x, below, stage)
    finally:
        torch.set_num_threads(threads)


def activations(
    encoder: Encoder, images: Images, folder: Path | None = None, progress: ProgressFn | None = None
) -> Array | None:
    """The whole split, memory-mapped and read-only; from the cache if it is there, else computed into it.

    None if the budget is 0 or has no room for it, of which the user is told.
    """
    if budget() == 0:
        return None
    path = (folder or default_folder()) / f"{encoder.key(images)}.npy"
    for _ in range(2):  # another process may remove a new file before it is opened here
        if (found := open_file(path, encoder.dtype)) is not None:
            return found
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f"{path.name[:12]}-", suffix=".part")
        os.close(handle)
        part = Path(name)
        try:
            fill(part, encoder, images, progress)
            part.replace(path)
        except NotKept as reason:
            tell(str(reason))
            return None
        finally:
            part.unlink(missing_ok=True)
    if (found := open_file(path, encoder.dtype)) is not None:
        return found
    raise UserError(f"the cache file {path} changed while it was written; is the disk full or shared?")


def open_file(path: Path, dtype: np.dtype[Any]) -> Array | None:
    """The array, or None if the file is absent, damaged or of another type."""
    try:
        with path.open("rb") as file:  # one handle throughout: what happens to the path meanwhile does not matter
            npy.read_magic(file)
            shape, by_columns, found_dtype = npy.read_array_header_1_0(file)
            size = file.tell() + dtype.itemsize * math.prod(shape)
            if found_dtype != dtype or by_columns or os.fstat(file.fileno()).st_size != size:
                return None
            found: Array = np.memmap(file, dtype, "r", file.tell(), shape)
    except Exception:  # numpy raises many kinds at a damaged header
        return None
    MAPPED[path.name, id(found)] = found
    with suppress(OSError):  # a folder that may only be read
        os.utime(path)  # says when it was used last
    return found


def fill(part: Path, encoder: Encoder, images: Images, progress: ProgressFn | None) -> None:
    out: np.memmap[Any, Any] | None = None
    done = 0
    for values in encoder.chunks(images, range(len(images))):
        if out is None:
            out = lay_out(part, (len(images), *values.shape[1:]), encoder.dtype)
        out[done : done + len(values)] = values.numpy()
        os.utime(part)  # mapped writes need not show in it, and a part that nobody writes to is removed
        done += len(values)
        if progress:
            progress("encoding images", done, len(images))
    if out is None:
        raise UserError("there are no images to encode")
    out.flush()
    with part.open("rb") as file:
        os.fsync(file.fileno())


def lay_out(part: Path, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.memmap[Any, Any]:
    """An array of this shape in a new file, once there is room for it."""
    needed = HEADER + dtype.itemsize * math.prod(shape)
    takes = f"caching {shape[0]} images takes {needed / 1e9:.1f} GB"
    missing = make_room(part.parent, part.name, needed)
    if missing > 0:
        limit, enough = budget() / 1e9, math.ceil((budget() + missing) / 1e9)
        raise NotKept(
            f"{takes}, more than FEDTAILOR_CACHE_GB={limit:g} leaves room for: each is encoded whenever it is needed, "
            f"which is slow; FEDTAILOR_CACHE_GB={enough} would keep them"
        )
    free = shutil.disk_usage(part.parent).free
    if needed > free:
        raise UserError(
            f"{takes}, {part.parent} has {free / 1e9:.1f} GB free; make room, or set FEDTAILOR_CACHE to a folder on a "
            "larger disk, or FEDTAILOR_CACHE_GB=0 to keep nothing"
        )
    try:
        out = npy.open_memmap(part, "w+", dtype, shape)
        if hasattr(os, "posix_fallocate"):  # now, since a disk that fills up under a mapped file kills the process
            with part.open("r+b") as file:
                os.posix_fallocate(file.fileno(), 0, out.offset + out.nbytes)
    except OSError as error:
        raise UserError(f"the feature cache cannot take {needed / 1e9:.1f} GB more: {error}") from error
    return out


class Held(NamedTuple):
    used: int  # when, in ns
    size: int
    path: Path


def held(folder: Path) -> list[Held]:
    """The cache's own files, the longest unused first."""
    found = []
    for path in folder.iterdir():
        with suppress(FileNotFoundError):  # another process has just removed it
            if OURS.fullmatch(path.name):
                found.append(Held((stat := path.stat()).st_mtime_ns, stat.st_size, path))
    return sorted(found)


def remove(path: Path) -> bool:
    """False if the system refuses: Windows does so with files that are mapped."""
    with suppress(OSError):
        path.unlink(missing_ok=True)
        return True
    return False


def make_room(folder: Path, name: str, needed: int) -> float:
    """Remove what was not used for longest until so many bytes fit the budget, or nothing if they never will.

    `name` is of the file to be written, or of its part. Returns how many bytes are still missing; 0 or less: none.
    """
    for file in held(folder):
        if file.path.suffix == ".part" and file.used < time.time_ns() - DAY:
            remove(file.path)  # its process is dead
    others = [file for file in held(folder) if not file.path.name.startswith(name[:12])]  # that one is replaced
    gc.collect()  # an earlier run's maps may hang in a reference cycle
    here = {mapped for mapped, _ in list(MAPPED)}
    spare = [file for file in others if file.path.suffix != ".part" and file.path.name not in here]
    missing = needed + sum(file.size for file in others) - budget()
    least = missing - sum(file.size for file in spare)
    if least > 0:
        return least
    for file in spare:
        if missing > 0 and remove(file.path):
            missing -= file.size
    return missing
