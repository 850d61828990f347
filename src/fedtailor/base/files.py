"""Files that are whole or not there, and folders that one process has to itself."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from filelock import FileLock, Timeout

from .errors import UserError


def write_atomic(path: Path, data: bytes, private: bool = False) -> None:
    """All of it or nothing: written aside, forced to disk, moved into place, the move forced to disk too.

    A private file can be read by its owner alone, from its first byte on.
    """
    part = path.with_name(path.name + ".part")
    part.unlink(missing_ok=True)  # one left behind may have another mode, or be open elsewhere
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if private else 0o644)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    except OSError:  # a full disk, say
        part.unlink(missing_ok=True)
        raise
    part.replace(path)
    if os.name == "posix":  # elsewhere a folder cannot be opened, nor need it be
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


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
