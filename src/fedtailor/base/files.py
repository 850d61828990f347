"""Files that are whole or not there, and folders that one process has to itself."""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from pathlib import Path

from filelock import FileLock, Timeout

from .errors import UserError


def write_atomic(path: Path, data: bytes, private: bool = False) -> None:
    """All of it or nothing: written aside, forced to disk, moved into place, the move forced to disk too.

    A private file can be read by its owner alone, from its first byte on.
    """
    write_whole(path, data, private)
    sync_folder(path.parent)


def write_whole(path: Path, data: bytes, private: bool = False) -> None:
    """The same but for the last step: of several files in a folder, one for all will do."""
    part = path.with_name(path.name + ".part")
    part.unlink(missing_ok=True)  # one left behind may have another mode, or be open elsewhere
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if private else 0o644)
    try:
        write_through(descriptor, data)
    except OSError:  # a full disk, say
        part.unlink(missing_ok=True)
        raise
    part.replace(path)


def append(path: Path, data: bytes) -> None:
    """To a log, on disk when this is over. That a log is there at all is on disk with the next thing in its folder."""
    write_through(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644), data)


def write_through(descriptor: int, data: bytes) -> None:
    """Written, forced to disk, and closed, whatever happens."""
    try:
        left = memoryview(data)
        while left:  # a signal or a limit may end a write early
            left = left[os.write(descriptor, left) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def cut(path: Path, length: int) -> None:
    """Only the first so many bytes are left."""
    descriptor = os.open(path, os.O_WRONLY)
    try:
        os.ftruncate(descriptor, length)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove(path: Path) -> None:
    """Gone, and after a power cut too."""
    if path.exists():
        path.unlink()
        sync_folder(path.parent)


def make_folder(path: Path) -> None:
    """With those above it; that they are there is forced to disk."""
    if path.is_dir():
        return
    make_folder(path.parent)
    with suppress(FileExistsError):  # another process was faster
        path.mkdir()
    sync_folder(path.parent)


def move_folder(path: Path, to: Path) -> None:
    """What is in it is on disk already."""
    path.rename(to)
    sync_folder(to.parent)


def sync_folder(folder: Path) -> None:
    """What was made, moved and removed in it is forced to disk."""
    if os.name != "posix":  # elsewhere a folder cannot be opened, nor need it be
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def file_hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


class FolderLock:
    """Keeps other processes out of a folder: `with FolderLock(folder):`, or acquire and release."""

    def __init__(self, folder: Path, what: str = "process") -> None:
        self.folder, self.what, self.lock = folder, what, FileLock(folder / ".lock")

    def acquire(self) -> None:
        try:
            self.lock.acquire(timeout=0)
        except Timeout as error:
            raise UserError(f"another {self.what} is running in {self.folder}") from error
        except OSError as error:
            raise UserError(f"cannot write in {self.folder}: {error.strerror}; copy it to where you can") from error

    def release(self) -> None:
        self.lock.release()

    def __enter__(self) -> FolderLock:
        self.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def is_locked(folder: Path) -> bool:
    """Whether some process has it to itself."""
    try:
        with FolderLock(folder):
            return False
    except UserError:
        return True
