"""What a tuner leaves alone is computed once: image features, embedded patches, or activations below its first layer.

One file holds one split of one dataset at one stage of one tower. Its name is a hash of all that it depends on; the
header repeats that hash, so a file that is cut short or belongs to something else is noticed and made anew. Files are
written beside their place and moved there whole: two processes may do so at once, and either result is the right one.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import numpy as np
import platformdirs
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..data.sets import Images
from ..errors import UserError
from .model import Clip
from .preprocess import Preprocess

MAGIC = "fedtailor cache 1"
HEADER = 4096
CHUNK = 64  # pictures encoded at once

Watch = Callable[[str, int, int], None]  # what is being done, how far, of how much


def default_folder() -> Path:
    named = os.environ.get("FEDTAILOR_CACHE")
    return Path(named) if named else Path(platformdirs.user_cache_dir("fedtailor")) / "features"


def key_of(digest: str, images: Images, transform: Preprocess, stage: str, precision: str) -> str:
    parts = [MAGIC, digest, images.fingerprint, repr(transform), stage, precision]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def encode(
    clip: Clip, pixels: Tensor, stage: str, device: torch.device, precision: torch.dtype | None = None
) -> Tensor:
    """Pixels to a stage of the frozen tower, in fp32 on the CPU."""
    with torch.no_grad(), torch.autocast(device.type, precision, enabled=precision is not None):
        return clip.vision(pixels.to(device), "pixels", stage).float().cpu()


def activations(
    clip: Clip,
    digest: str,
    images: Images,
    transform: Preprocess,
    stage: str,
    device: torch.device,
    precision: torch.dtype | None = None,
    folder: Path | None = None,
    watch: Watch | None = None,
) -> NDArray[np.float32]:
    """The whole split at a stage, memory-mapped and read-only; from the cache if it is there, else computed into it."""
    key = key_of(digest, images, transform, stage, str(precision))
    path = (folder or default_folder()) / f"{key}.act"
    found = open_file(path, key)
    if found is not None:
        return found
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f"{key[:12]}-", suffix=".part")
    os.close(handle)
    part = Path(name)
    try:
        fill(part, key, clip, images, transform, stage, device, precision, watch)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    made = open_file(path, key)
    if made is None:
        raise UserError(f"the cache file {path} changed while it was written; is the disk full or shared?")
    return made


def open_file(path: Path, key: str) -> NDArray[np.float32] | None:
    """The array, or None if the file is absent, cut short, or not the one of this key."""
    try:
        with path.open("rb") as file:
            header = json.loads(file.read(HEADER).rstrip(b"\0"))
        shape = tuple(int(side) for side in header["shape"])
        whole = header["magic"] == MAGIC and header["key"] == key
        whole = whole and path.stat().st_size == HEADER + 4 * math.prod(shape)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if not whole:
        return None
    return np.memmap(path, np.float32, "r", HEADER, shape)


def fill(
    part: Path,
    key: str,
    clip: Clip,
    images: Images,
    transform: Preprocess,
    stage: str,
    device: torch.device,
    precision: torch.dtype | None,
    watch: Watch | None,
) -> None:
    out: NDArray[np.float32] | None = None
    for begin in range(0, len(images), CHUNK):
        chunk = range(begin, min(begin + CHUNK, len(images)))
        values = encode(clip, torch.stack([transform(images.read(i)) for i in chunk]), stage, device, precision)
        if out is None:
            out = lay_out(part, key, (len(images), *values.shape[1:]))
        out[begin : chunk.stop] = values.numpy()
        if watch:
            watch("encoding images", chunk.stop, len(images))
    if out is None:
        raise UserError("there are no images to encode")
    out.flush()  # type: ignore[attr-defined]
    with part.open("rb") as file:
        os.fsync(file.fileno())


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


def lay_out(part: Path, key: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
    needed, free = HEADER + 4 * int(np.prod(shape)), shutil.disk_usage(part.parent).free
    if needed > free:
        raise UserError(
            f"caching {shape[0]} images takes {needed / 1e9:.1f} GB, {part.parent} has {free / 1e9:.1f} GB free; "
            "make room, or set FEDTAILOR_CACHE to a folder on a larger disk"
        )
    header = json.dumps({"magic": MAGIC, "key": key, "shape": shape}).encode()
    with part.open("wb") as file:
        file.write(header.ljust(HEADER, b"\0"))
        reserve(file, needed)
    return np.memmap(part, np.float32, "r+", HEADER, shape)
