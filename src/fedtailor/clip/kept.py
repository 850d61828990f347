"""A split at one stage, as it lies in the cache: memory-mapped, and each block of it checked when it is first read."""

import math
import os
import struct
import threading
import warnings
import zlib
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.lib import format as npy
from numpy.typing import NDArray

from ..base.errors import Note, UserError
from ..data.dataset import Images, Indices
from .encoder import Encoder
from .part import Array, Sums, blocks, rows_in_block, tail


def checksum(rows: Array) -> int:
    return zlib.crc32(np.ascontiguousarray(rows).data.cast("B"))


class Kept:
    """A block that is not as it was written is encoded anew: a picture comes out the same, whichever others are beside
    it (docs/decisions/0012). If it does not, this is another machine than the one that wrote the file."""

    def __init__(self, path: Path, values: Array, sums: Sums, encoder: Encoder, images: Images) -> None:
        self.path, self.values, self.sums, self.encoder, self.images = path, values, sums, encoder, images
        self.rows = rows_in_block(values[:1].nbytes)  # of a block
        self.unseen: NDArray[np.bool_] | None = np.ones(len(sums), np.bool_)  # None: all have been read
        self.spare: dict[int, Array] = {}  # blocks that could not be mended in the file
        self.mending = threading.Lock()

    def __len__(self) -> int:
        return len(self.values)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.values.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.values.dtype

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return np.asarray(self[np.arange(len(self))], dtype)

    def __getitem__(self, indices: Indices) -> Array:
        number = np.asarray(indices) // self.rows
        if (unseen := self.unseen) is not None:  # clients side by side: another may see the last block meanwhile
            for block in np.unique(number[unseen[number]]):
                self.look(int(block))
                unseen[block] = False
            if not unseen.any():
                self.unseen = None
        found: Array = self.values[indices]
        for block, rows in list(self.spare.items()):
            mine = number == block
            found[mine] = rows[np.asarray(indices)[mine] - block * self.rows]
        return found

    def look(self, block: int) -> None:
        """At a block of which nothing has been read yet."""
        rows = slice(block * self.rows, (block + 1) * self.rows)
        if checksum(self.values[rows]) != self.sums[block]:
            with self.mending:
                if checksum(self.values[rows]) != self.sums[block] and block not in self.spare:
                    self.mend(block, range(len(self))[rows])

    def mend(self, block: int, rows: range) -> None:
        warnings.warn(f"the cache file {self.path} is damaged; what is wrong in it is encoded anew", Note, stacklevel=2)
        anew = torch.cat(list(self.encoder.chunks(self.images, rows))).numpy()
        if checksum(anew) != self.sums[block]:
            with suppress(OSError):
                self.path.unlink()
            raise UserError(
                f"the cache file {self.path} is damaged, and what is wrong in it comes out otherwise here than where "
                "it was written; it has been removed: begin again, or resume the run, and it is made anew"
            )
        with suppress(OSError), self.path.open("r+b") as file:  # a folder that may only be read
            if os.fstat(file.fileno()).st_size == self.begin + self.values.nbytes + tail(self.values.shape, anew.dtype):
                file.seek(self.begin + rows.start * self.values[:1].nbytes)
                file.write(anew.tobytes())
                file.flush()
                os.fsync(file.fileno())
        if checksum(self.values[rows.start : rows.stop]) != self.sums[block]:
            self.spare[block] = anew

    @property
    def begin(self) -> int:
        """Where the array begins in the file."""
        return int(getattr(self.values, "offset", 0))


def open_kept(path: Path, encoder: Encoder, images: Images) -> Kept:
    """Of a file that is whole; an error, of whatever kind, if it is absent, damaged or of another type."""
    dtype = encoder.dtype
    with path.open("rb") as file:  # one handle throughout: what happens to the path meanwhile does not matter
        npy.read_magic(file)
        shape, by_columns, found = npy.read_array_header_1_0(file)
        begin, size = file.tell(), os.fstat(file.fileno()).st_size
        end = begin + dtype.itemsize * math.prod(shape)
        if found != dtype or by_columns or shape[0] != len(images) or size != end + tail(shape, dtype):
            raise ValueError("it is of another shape or type")
        file.seek(end)
        told = file.read(4 * blocks(shape, dtype))
        (whole,) = struct.unpack("<I", file.read(4))
        file.seek(0)
        if zlib.crc32(told, zlib.crc32(file.read(begin))) != whole:
            raise ValueError("its checksums are not as they were written")
        values: Array = np.memmap(file, dtype, "r", begin, shape)
    return Kept(path, values, np.frombuffer(told, "<u4"), encoder, images)
