"""What a tuner leaves alone is computed once: image features, embedded patches, or activations below its first layer.

One .npy file holds one split of one dataset at one stage of one tower. Its name is a hash of all that it depends on. A
file is written under another name and moved into place whole, so that two processes may do so at once (part.py), and
what is read of it is checked (kept.py). The folder has a budget: what was not used for longest makes room for what is
new.
"""

import errno
import gc
import math
import os
import re
import shutil
import time
import warnings
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import numpy as np

from ..base.errors import Note, UserError
from ..base.folders import cache_folder
from ..base.progress import ProgressFn
from ..base.sizes import size
from ..data.dataset import Images
from .encoder import Encoder
from .kept import Kept, open_kept
from .part import Part, tail

HEADER = 128  # bytes that numpy writes before an array of a few axes
BUDGET = 20  # GB of files in the folder, unless FEDTAILOR_CACHE_GB says otherwise
DAY = 24 * 3600 * 10**9
OURS = re.compile(r"[0-9a-f]{64}\.(npy|act)|[0-9a-f]{12}-\w+\.part")  # .act: of earlier versions, only to be removed

MAPPED: WeakValueDictionary[tuple[str, int], Kept] = WeakValueDictionary()  # (file's name, id) of what is open here


def default_folder() -> Path:
    return cache_folder("features")


def budget() -> float:
    """How many bytes the folder may hold; 0: nothing is kept."""
    given = os.environ.get("FEDTAILOR_CACHE_GB") or str(BUDGET)
    with suppress(ValueError):
        if (most := float(given) * 1e9) >= 0:
            return most
    raise UserError(
        f"FEDTAILOR_CACHE_GB is {given!r}; it takes gigabytes, such as {BUDGET} or 0.5; 0 keeps nothing, inf all"
    )


class NotKept(Note):
    """A split for which the cache has no room."""


@cache  # a comparison opens the same split for every run
def tell(message: str, kind: type[Note] = Note) -> None:
    warnings.warn(message, kind, stacklevel=3)


@contextmanager
def keeping(folder: Path) -> Iterator[None]:
    """What the disk refuses is not kept, and nothing else is lost by it. The same sentence for every split."""
    try:
        yield
    except OSError as error:
        raise NotKept(
            f"the feature cache {folder} cannot be written ({error.strerror or error}): each image is encoded whenever "
            "it is needed, which is slow; make room, or set FEDTAILOR_CACHE to a folder on another disk, or "
            "FEDTAILOR_CACHE_GB=0 to keep nothing"
        ) from error


def activations(
    encoder: Encoder, images: Images, folder: Path | None = None, progress: ProgressFn | None = None
) -> Kept | None:
    """The whole split, memory-mapped and read-only; from the cache if it is there, else computed into it.

    None if the budget is 0 or has no room for it, or the disk takes no more, of which the user is told.
    """
    if budget() == 0:
        return None
    path = (folder or default_folder()) / f"{encoder.key(images)}.npy"
    for _ in range(2):  # another process may remove a new file before it is opened here
        if (found := open_file(path, encoder, images)) is not None:
            return found
        if path.exists():
            tell(f"the cache file {path} is damaged; it is made anew")
        try:
            with keeping(path.parent):
                path.parent.mkdir(parents=True, exist_ok=True)
            fill(path, encoder, images, progress)
        except NotKept as reason:
            tell(str(reason), NotKept)
            return None
    if (found := open_file(path, encoder, images)) is not None:
        return found
    raise UserError(f"the cache file {path} changed while it was written; is the disk full or shared?")


def open_file(path: Path, encoder: Encoder, images: Images) -> Kept | None:
    """None if the file is absent, damaged or of another type."""
    try:
        found = open_kept(path, encoder, images)
    except Exception:  # numpy raises many kinds at a damaged header
        return None
    MAPPED[path.name, id(found)] = found
    with suppress(OSError):  # a folder that may only be read
        os.utime(path)  # says when it was used last
    return found


def fill(path: Path, encoder: Encoder, images: Images, progress: ProgressFn | None) -> None:
    """Encode what there is not yet, and move it into place. What was stopped, by Ctrl-C too, goes on another time."""
    folder, key, count = path.parent, path.stem, len(images)
    part = Part.take_up(folder, key, count, encoder.dtype)
    try:
        if part:
            check_room(folder, key, part.shape, encoder.dtype, taken=part.size)
            if progress:
                progress("encoding images", part.done, count)
        with closing(encoder.chunks(images, range(part.done if part else 0, count))) as chunks:
            for values in chunks:
                if part is None:
                    part = lay_out(folder, key, (count, *values.shape[1:]), encoder.dtype)
                with keeping(folder):
                    part.add(values.numpy())
                if progress:
                    progress("encoding images", part.done, count)
        if part is None:
            raise UserError("there are no images to encode")
        with keeping(folder):
            part.finish(path)
    except Exception:
        if part:
            part.remove()
        raise
    except BaseException:
        if part:
            part.stop()
        raise


def check_room(folder: Path, key: str, shape: tuple[int, ...], dtype: np.dtype[Any], taken: int = 0) -> None:
    """That the budget and the disk have room for such an array, of which so many bytes are taken already."""
    needed = HEADER + dtype.itemsize * math.prod(shape) + tail(shape, dtype)
    with keeping(folder):
        missing = make_room(folder, key, needed)
    if missing > 0:
        limit, enough = budget() / 1e9, math.ceil((budget() + missing) / 1e9)
        raise NotKept(
            f"caching {shape[0]} images takes {size(needed)}, more than FEDTAILOR_CACHE_GB={limit:g} leaves room for: "
            f"each is encoded whenever it is needed, which is slow; FEDTAILOR_CACHE_GB={enough} would keep them"
        )
    with keeping(folder):
        if needed - taken > shutil.disk_usage(folder).free:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def lay_out(folder: Path, key: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Part:
    """An array of this shape in a new part, once there is room for it."""
    check_room(folder, key, shape, dtype)
    with keeping(folder):
        return Part.create(folder, key, shape, dtype)


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

    `name` is of the file to be written, or its key. Returns how many bytes are still missing; 0 or less: none.
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
