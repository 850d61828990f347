"""What a tuner leaves alone is computed once: image features, embedded patches, or activations below its first layer.

One file holds one split of one dataset at one stage of one tower. Its name is a hash of all that it depends on; the
header repeats that hash, so a file that is cut short or belongs to something else is noticed and made anew. Files are
written beside their place and moved there whole: two processes may do so at once, and either result is the right one.
The folder has a budget: what was not used for longest makes room for what is new.
"""

from __future__ import annotations

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
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple
from weakref import WeakValueDictionary

import numpy as np
import platformdirs
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..base.errors import UserError
from ..data.dataset import Images, Indices
from ..data.preprocess import Preprocess
from .model import Clip
from .vision import ImageTower

MAGIC = "fedtailor cache 2"
HEADER = 4096
CHUNK = 16  # pictures encoded at once
BUDGET = 20  # GB of files in the folder, where FEDTAILOR_CACHE_GB says nothing else
HALF = {"patches"}  # stages kept in fp16: a row for each patch, all of which are normalised before use
DAY = 24 * 3600 * 10**9
OURS = re.compile(r"[0-9a-f]{64}\.act|[0-9a-f]{12}-\w+\.part")

Array = NDArray[np.floating[Any]]
MAPPED: WeakValueDictionary[tuple[str, int], Array] = WeakValueDictionary()  # (file's name, id) of what is open here
ProgressFn = Callable[[str, int, int], None]  # what is being done, how far, of how much


def default_folder() -> Path:
    named = os.environ.get("FEDTAILOR_CACHE")
    return Path(named) if named else Path(platformdirs.user_cache_dir("fedtailor")) / "features"


def budget() -> float:
    """How many bytes the folder may hold; 0: nothing is kept."""
    given = os.environ.get("FEDTAILOR_CACHE_GB") or str(BUDGET)
    try:
        size = float(given) * 1e9
    except ValueError:
        size = math.nan
    if not size >= 0:
        raise UserError(
            f"FEDTAILOR_CACHE_GB is {given!r}; it takes gigabytes, such as {BUDGET} or 0.5; 0 keeps nothing, inf all"
        )
    return size


class NotKept(UserWarning):
    """A split for which the cache has no room."""


@cache  # a comparison opens the same split for every run
def tell(message: str) -> None:
    warnings.warn(message, NotKept, stacklevel=3)


def key_of(digest: str, images: Images, transform: Preprocess, stage: str, precision: str) -> str:
    parts = [MAGIC, digest, images.fingerprint, repr(transform), stage, precision]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def encode(
    clip: Clip, pixels: Tensor, stage: str, device: torch.device, precision: torch.dtype | None = None
) -> Tensor:
    """A chunk of pixels to a stage of the frozen tower, on the CPU: in fp32, or fp16 where the stage is kept so.

    A picture comes out the same, to the bit, whichever others are beside it and however many.
    """
    short = CHUNK - len(pixels)  # products of other sizes round otherwise, so every chunk is a full one
    whole = torch.cat([pixels, pixels[-1:].expand(short, -1, -1, -1)]) if short else pixels
    with torch.no_grad(), torch.autocast(device.type, precision, enabled=precision is not None):
        values = encode_to_stage(clip.vision, whole.to(device), stage)[: len(pixels)].float().cpu()
    if stage not in HALF:
        return values
    half = values.half()
    if not half.isfinite().all():
        raise UserError(
            f"activations at the stage {stage!r} reach {values.abs().max():.3g}; they are kept in fp16, which ends at "
            "65504. Try backbone.precision=fp32 if it is fp16; else the weights of this backbone are not in order"
        )
    return half


def encode_to_stage(tower: ImageTower, pixels: Tensor, stage: str) -> Tensor:
    if stage != "features":
        return tower(pixels, "pixels", stage)
    # The read-out asks with one token a picture, and fused attention then rounds by the thread that it runs in.
    below = tower.stages[-3]
    x = tower(pixels, "pixels", below)
    with one_thread():
        return tower(x, below, stage)


@contextmanager
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def encoded(
    clip: Clip,
    images: Images,
    indices: Sequence[int] | Indices,
    transform: Preprocess,
    stage: str,
    device: torch.device,
    precision: torch.dtype | None = None,
    rng: torch.Generator | None = None,
) -> Iterator[Tensor]:
    """Pictures at a stage, a chunk at a time."""
    for begin in range(0, len(indices), CHUNK):
        views = [transform(images.read(int(i)), rng) for i in indices[begin : begin + CHUNK]]
        yield encode(clip, torch.stack(views), stage, device, precision)


def activations(
    clip: Clip,
    digest: str,
    images: Images,
    transform: Preprocess,
    stage: str,
    device: torch.device,
    precision: torch.dtype | None = None,
    folder: Path | None = None,
    progress: ProgressFn | None = None,
) -> Array | None:
    """The whole split at a stage, memory-mapped and read-only; from the cache if it is there, else computed into it.

    None if the budget has no room for it, which the user is told, or is 0.
    """
    if budget() == 0:
        return None
    key = key_of(digest, images, transform, stage, str(precision))
    path = (folder or default_folder()) / f"{key}.act"
    dtype = np.dtype(np.float16 if stage in HALF else np.float32)
    for _ in range(2):  # another process may remove a new file before it is opened here
        found = open_file(path, key, dtype)
        if found is not None:
            return found
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f"{key[:12]}-", suffix=".part")
        os.close(handle)
        part = Path(name)
        try:
            fill(part, key, clip, images, transform, stage, device, precision, progress)
            part.replace(path)
        except NotKept as reason:
            tell(str(reason))
            return None
        finally:
            part.unlink(missing_ok=True)
    made = open_file(path, key, dtype)
    if made is None:
        raise UserError(f"the cache file {path} changed while it was written; is the disk full or shared?")
    return made


def open_file(path: Path, key: str, dtype: np.dtype[Any]) -> Array | None:
    """The array, or None if the file is absent, cut short, or not the one of this key and type."""
    try:
        with path.open("rb") as file:  # one handle for all: what happens to the path meanwhile does not matter
            header = json.loads(file.read(HEADER).rstrip(b"\0"))
            shape = tuple(int(side) for side in header["shape"])
            whole = header["magic"] == MAGIC and header["key"] == key
            whole = whole and header.get("dtype", "float32") == dtype.name  # older files are all fp32
            if not whole or os.fstat(file.fileno()).st_size != HEADER + dtype.itemsize * math.prod(shape):
                return None
            found: Array = np.memmap(file, dtype, "r", HEADER, shape)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    MAPPED[path.name, id(found)] = found
    with suppress(OSError):  # a folder that may only be read
        os.utime(path)  # says when it was used last
    return found


def fill(
    part: Path,
    key: str,
    clip: Clip,
    images: Images,
    transform: Preprocess,
    stage: str,
    device: torch.device,
    precision: torch.dtype | None,
    progress: ProgressFn | None,
) -> None:
    out: Array | None = None
    done = 0
    for values in encoded(clip, images, range(len(images)), transform, stage, device, precision):
        if out is None:
            out = lay_out(part, key, (len(images), *values.shape[1:]), values.numpy().dtype)
        out[done : done + len(values)] = values.numpy()
        os.utime(part)  # mapped writes need not show in it, and parts that are left alone are cleared
        done += len(values)
        if progress:
            progress("encoding images", done, len(images))
    if out is None:
        raise UserError("there are no images to encode")
    out.flush()  # type: ignore[attr-defined]
    with part.open("rb") as file:
        os.fsync(file.fileno())


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
    """False where the system keeps it: Windows does so with files that are mapped."""
    try:
        path.unlink(missing_ok=True)
    except OSError:
        return False
    return True


def make_room(folder: Path, key: str, needed: int) -> float:
    """Remove what was not used for longest until so many bytes fit the budget, or nothing if they never will.

    The bytes that are missing still; 0 or less if there is room.
    """
    for file in held(folder):
        if file.path.suffix == ".part" and file.used < time.time_ns() - DAY:
            remove(file.path)  # nobody writes it any more
    others = [file for file in held(folder) if not file.path.name.startswith(key[:12])]  # that file is replaced
    gc.collect()  # an earlier run's maps may hang in a cycle
    here = {name for name, _ in list(MAPPED)}
    spare = [file for file in others if file.path.suffix == ".act" and file.path.name not in here]
    missing = needed + sum(file.size for file in others) - budget()
    least = missing - sum(file.size for file in spare)
    if least > 0:
        return least
    for file in spare:
        if missing > 0 and remove(file.path):
            missing -= file.size
    return missing


def reserve(file: BinaryIO, size: int) -> None:
    """Take the whole space now: a disk that fills up while a mapped file is written kills the process."""
    try:
        file.flush()
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file.fileno(), 0, size)
        else:
            file.truncate(size)
    except OSError as error:
        raise UserError(f"the feature cache cannot take {size / 1e9:.1f} GB more: {error}") from error


def lay_out(part: Path, key: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    needed = HEADER + dtype.itemsize * math.prod(shape)
    takes = f"caching {shape[0]} images takes {needed / 1e9:.1f} GB"
    missing = make_room(part.parent, key, needed)
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
    header = json.dumps({"magic": MAGIC, "key": key, "shape": shape, "dtype": dtype.name}).encode()
    with part.open("wb") as file:
        file.write(header.ljust(HEADER, b"\0"))
        reserve(file, needed)
    return np.memmap(part, dtype, "r+", HEADER, shape)
