"""A cache file in the making, filled row by row under a name of its own; taken up again if its process was killed.

Behind the array stand a checksum for each block of rows, and one of the header and of these. Behind them, as long as it
is in the making, stands a note: whose rows these are, how many are on disk, and their checksum. It is written after
them, so it is never ahead. Who fills a part holds a lock on it, which ends with its process at the latest; whoever
finds all parts locked makes one of their own.
"""

import math
import os
import struct
import sys
import tempfile
import time
import zlib
from contextlib import suppress
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

NOTE = struct.Struct("<32sQI")  # the key, rows, their checksum
SECONDS = 2.0  # from note to note
BLOCK = 1 << 16  # bytes that a checksum is of, if a row is not longer

Array = NDArray[np.floating[Any]]
Sums = NDArray[np.uint32]


def rows_in_block(row: int) -> int:
    """Of so many bytes each."""
    return max(1, BLOCK // max(row, 1))


def blocks(shape: tuple[int, ...], dtype: np.dtype[Any]) -> int:
    return -(-shape[0] // rows_in_block(dtype.itemsize * math.prod(shape[1:])))


def tail(shape: tuple[int, ...], dtype: np.dtype[Any]) -> int:
    """Bytes behind the array."""
    return 4 * (blocks(shape, dtype) + 1)


def lock(file: FileIO, wait: bool) -> None:
    """An error if another process has it and we do not wait, or if this system has no such locks."""
    if sys.platform == "win32":
        raise OSError("no such locks here")
    import fcntl

    fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))


@dataclass
class Part:
    path: Path
    key: str
    file: FileIO
    shape: tuple[int, ...]
    begin: int  # where the array begins
    size: int  # of the array, in bytes
    sums: Sums  # of the blocks, as far as they are filled
    done: int = 0  # rows
    noted: float = field(default_factory=time.monotonic)  # when

    @classmethod
    def create(cls, folder: Path, key: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Self:
        handle, name = tempfile.mkstemp(dir=folder, prefix=f"{key[:12]}-", suffix=".part")
        file = FileIO(handle, "r+")
        with suppress(OSError):  # then nobody takes it up
            lock(file, wait=True)  # another process may have it for a moment, to find that it is empty
        sums = np.zeros(blocks(shape, dtype), "<u4")
        part = cls(Path(name), key, file, shape, 0, dtype.itemsize * math.prod(shape), sums)
        header = {"descr": npy.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
        try:
            npy.write_array_header_1_0(file, header)
            part.begin = file.tell()
            if hasattr(os, "posix_fallocate"):  # now, not after an hour of work
                os.posix_fallocate(file.fileno(), 0, part.noted_at + NOTE.size)
        except OSError:
            part.remove()
            raise
        return part

    @classmethod
    def take_up(cls, folder: Path, key: str, count: int, dtype: np.dtype[Any]) -> Self | None:
        """What a dead process has left of these rows, if there is any that can be trusted."""
        for path in sorted(folder.glob(f"{key[:12]}-*.part")):
            with suppress(OSError):
                file = FileIO(path, "r+")
                if (part := cls.read(path, key, file, count, dtype)) is not None:
                    os.utime(path)  # it is in use again
                    return part
                file.close()
        return None

    @classmethod
    def read(cls, path: Path, key: str, file: FileIO, count: int, dtype: np.dtype[Any]) -> Self | None:
        try:
            lock(file, wait=False)
            if not os.path.samestat(os.fstat(file.fileno()), path.stat()):  # just finished, or removed
                return None
            npy.read_magic(file)
            shape, by_columns, found = npy.read_array_header_1_0(file)
            sums = np.zeros(blocks(shape, dtype), "<u4")
            part = cls(path, key, file, shape, file.tell(), dtype.itemsize * math.prod(shape), sums)
            total = part.noted_at + NOTE.size
            if found != dtype or by_columns or shape[0] != count or os.fstat(file.fileno()).st_size != total:
                return None
            file.seek(part.noted_at)
            whose, done, noted = NOTE.unpack(file.read(NOTE.size))
            if whose != bytes.fromhex(key) or not 0 < done <= count:
                return None
            file.seek(part.begin)
            at, left = 0, part.row * done
            while left and (data := file.read(min(left, 1 << 20))):
                part.sum_up(at, memoryview(data))
                at, left = at + len(data), left - len(data)
            part.done = done
        except Exception:  # numpy raises many kinds at a damaged header
            return None
        return part if part.checksum == noted and not left else None

    @property
    def row(self) -> int:
        """Bytes of one."""
        return self.size // self.shape[0]

    @property
    def noted_at(self) -> int:
        return self.begin + self.size + 4 * (len(self.sums) + 1)

    @property
    def checksum(self) -> int:
        return zlib.crc32(self.sums.tobytes())

    def sum_up(self, at: int, data: memoryview) -> None:
        """Bytes of the array, from there on, into the checksums of their blocks."""
        block = rows_in_block(self.row) * self.row
        while len(data):
            number, inside = divmod(at, block)
            piece = data[: block - inside]
            self.sums[number] = zlib.crc32(piece, int(self.sums[number]))
            at, data = at + len(piece), data[len(piece) :]

    def add(self, rows: Array) -> None:
        data = np.ascontiguousarray(rows).data.cast("B")
        if rows.shape[1:] != self.shape[1:]:
            raise ValueError(f"rows of {rows.shape[1:]} for an array of {self.shape}")
        self.write(self.begin + self.row * self.done, data)
        self.sum_up(self.row * self.done, data)
        self.done += len(rows)
        if time.monotonic() - self.noted > SECONDS:
            self.note()

    def write(self, at: int, data: memoryview) -> None:
        self.file.seek(at)
        while len(data):  # a signal or a limit may end a write early
            data = data[self.file.write(data) :]

    def note(self) -> None:
        """How far it is, once that is on disk."""
        os.fsync(self.file.fileno())
        note = NOTE.pack(bytes.fromhex(self.key), self.done, self.checksum)
        self.write(self.noted_at, memoryview(note))
        self.noted = time.monotonic()

    def finish(self, path: Path) -> None:
        """Moved into place, whole."""
        self.file.seek(0)
        told = self.sums.tobytes()
        whole = zlib.crc32(told, zlib.crc32(self.file.read(self.begin)))
        self.write(self.begin + self.size, memoryview(told + struct.pack("<I", whole)))
        self.file.truncate(self.noted_at)
        os.fsync(self.file.fileno())
        self.file.close()
        with suppress(FileNotFoundError):  # removed by another process as one of the dead: who opens it will see
            self.path.replace(path)

    def stop(self) -> None:
        """Left to be taken up another time."""
        if self.done:
            with suppress(OSError):
                self.note()
            self.file.close()
        else:
            self.remove()

    def remove(self) -> None:
        """First of all, since whoever gets the lock would go on with it; Windows lets only closed files go."""
        for _ in range(2):
            with suppress(OSError):
                self.path.unlink(missing_ok=True)
            self.file.close()
