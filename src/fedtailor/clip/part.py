"""A cache file in the making, filled row by row under a name of its own; taken up again if its process was killed.

Behind the array stands a note: whose rows these are, how many are on disk, and their checksum. It is written after
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

Array = NDArray[np.floating[Any]]


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
    done: int = 0  # rows
    checksum: int = 0
    noted: float = field(default_factory=time.monotonic)  # when

    @classmethod
    def create(cls, folder: Path, key: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Self:
        handle, name = tempfile.mkstemp(dir=folder, prefix=f"{key[:12]}-", suffix=".part")
        file = FileIO(handle, "r+")
        with suppress(OSError):  # then nobody takes it up
            lock(file, wait=True)  # another process may have it for a moment, to find that it is empty
        part = cls(Path(name), key, file, shape, 0, dtype.itemsize * math.prod(shape))
        header = {"descr": npy.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
        try:
            npy.write_array_header_1_0(file, header)
            part.begin = file.tell()
            if hasattr(os, "posix_fallocate"):  # now, not after an hour of work
                os.posix_fallocate(file.fileno(), 0, part.begin + part.size + NOTE.size)
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
            part = cls(path, key, file, shape, file.tell(), dtype.itemsize * math.prod(shape))
            total = part.begin + part.size + NOTE.size
            if found != dtype or by_columns or shape[0] != count or os.fstat(file.fileno()).st_size != total:
                return None
            file.seek(part.begin + part.size)
            whose, part.done, noted = NOTE.unpack(file.read(NOTE.size))
            if whose != bytes.fromhex(key) or not 0 < part.done <= count:
                return None
            file.seek(part.begin)
            left = part.size // count * part.done
            while left and (data := file.read(min(left, 1 << 20))):
                part.checksum, left = zlib.crc32(data, part.checksum), left - len(data)
        except Exception:  # numpy raises many kinds at a damaged header
            return None
        return part if part.checksum == noted and not left else None

    def add(self, rows: Array) -> None:
        data = np.ascontiguousarray(rows).data.cast("B")
        if rows.shape[1:] != self.shape[1:]:
            raise ValueError(f"rows of {rows.shape[1:]} for an array of {self.shape}")
        self.write(self.begin + self.size // self.shape[0] * self.done, data)
        self.done, self.checksum = self.done + len(rows), zlib.crc32(data, self.checksum)
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
        self.write(self.begin + self.size, memoryview(note))
        self.noted = time.monotonic()

    def finish(self, path: Path) -> None:
        """Moved into place, whole."""
        self.file.truncate(self.begin + self.size)
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
