"""A disk whose power can be cut: what a piece of work does to a folder, in order, and what may be left of it.

What is promised of a disk is little: what was written to a file is there once the file was forced to disk, and that
a file was made, moved or removed once its folder was. Of all else any part may be there or not, in any order, and the
last write to a file may be torn.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch


class Op(NamedTuple):
    kind: str  # make, write, cut, force, force-folder, move, remove
    node: int  # the file or the folder
    at: tuple[int, str] = (-1, "")  # the folder that it is in, and its name there
    to: tuple[int, str] = (-1, "")
    data: bytes | None = None  # None: of a folder
    place: int = 0


@dataclass
class Recorder:
    """Of everything below a folder. Who writes past the functions of `os` is found out by `everything`."""

    root: Path
    ops: list[Op] = field(default_factory=list)
    nodes: dict[int, int] = field(default_factory=dict)  # by inode
    numbers: Iterator[int] = field(default_factory=count)
    files: dict[int, tuple[int, int]] = field(default_factory=dict)  # by descriptor: a node, and where to write
    folders: dict[int, Path] = field(default_factory=dict)  # by descriptor

    def node(self, path: Path) -> int:
        inode = path.lstat().st_ino
        if inode not in self.nodes:
            self.nodes[inode] = next(self.numbers)
        return self.nodes[inode]

    def place(self, path: Path) -> tuple[int, str]:
        return self.node(path.parent), path.name

    def forget(self, path: Path) -> None:
        """It is gone, and its inode may be another file's from now on."""
        if path.exists():
            self.nodes.pop(path.lstat().st_ino, None)

    def below(self, path: Any, dir_fd: int | None = None) -> Path | None:
        known = self.folders.get(dir_fd, Path()) if dir_fd is not None else Path()
        found = known / os.fsdecode(path)
        return found if found.is_relative_to(self.root) and found != self.root and found.name != ".lock" else None

    @contextmanager
    def recording(self) -> Iterator[None]:
        self.node(self.root)
        names = ("open", "close", "write", "ftruncate", "replace", "rename", "mkdir", "unlink", "remove", "rmdir")
        real = {name: getattr(os, name) for name in names}

        def open_(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
            found = self.below(path, dir_fd)
            new = bool(found and flags & os.O_CREAT and not found.exists())
            descriptor: int = real["open"](path, flags, mode, dir_fd=dir_fd)
            known = self.below(path, dir_fd) or (self.root if os.fsdecode(path) == str(self.root) else None)
            if known is not None and known.is_dir():
                self.folders[descriptor] = known
            elif found:
                node = self.node(found)
                if new:
                    self.ops.append(Op("make", node, self.place(found), data=b""))
                self.files[descriptor] = node, os.fstat(descriptor).st_size if flags & os.O_APPEND else 0
            return descriptor

        def close(descriptor: int) -> None:
            self.files.pop(descriptor, None)
            self.folders.pop(descriptor, None)
            real["close"](descriptor)

        def write(descriptor: int, data: Any) -> int:
            done: int = real["write"](descriptor, data)
            if descriptor in self.files:
                node, place = self.files[descriptor]
                self.ops.append(Op("write", node, data=bytes(data[:done]), place=place))
                self.files[descriptor] = node, place + done
            return done

        def ftruncate(descriptor: int, length: int) -> None:
            real["ftruncate"](descriptor, length)
            self.ops.append(Op("cut", self.files[descriptor][0], place=length))

        def fsync(descriptor: int) -> None:
            if descriptor in self.files:
                self.ops.append(Op("force", self.files[descriptor][0]))
            elif descriptor in self.folders:
                self.ops.append(Op("force-folder", self.node(self.folders[descriptor])))

        def move(source: Any, target: Any, **how: Any) -> None:
            if found := self.below(source):
                self.ops.append(Op("move", self.node(found), self.place(found), self.place(Path(target))))
                self.forget(Path(target))
            real["rename"](source, target, **how)

        def mkdir(path: Any, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
            real["mkdir"](path, mode, dir_fd=dir_fd)
            if found := self.below(path, dir_fd):
                self.ops.append(Op("make", self.node(found), self.place(found)))

        def removing(name: str) -> Callable[..., None]:
            def remove(path: Any, *, dir_fd: int | None = None) -> None:
                if (found := self.below(path, dir_fd)) and (found.exists() or found.is_symlink()):
                    self.ops.append(Op("remove", self.node(found), self.place(found)))
                    self.forget(found)
                real[name](path, dir_fd=dir_fd)

            return remove

        ours = {"open": open_, "close": close, "write": write, "ftruncate": ftruncate, "mkdir": mkdir, "fsync": fsync}
        ours |= {"replace": move, "rename": move, **{name: removing(name) for name in ("unlink", "remove", "rmdir")}}
        with patch.multiple(os, **ours):
            yield


@dataclass
class Disk:
    """What is certain, and what is not yet."""

    files: dict[int, bytearray] = field(default_factory=dict)
    folders: dict[int, dict[str, int]] = field(default_factory=lambda: {0: {}})
    writes: dict[int, list[Op]] = field(default_factory=dict)  # by file
    changes: list[Op] = field(default_factory=list)  # of folders

    def do(self, op: Op) -> None:
        if op.kind in ("write", "cut"):
            self.writes.setdefault(op.node, []).append(op)
        elif op.kind == "force":
            for each in self.writes.pop(op.node, ()):
                self.change_file(each)
        elif op.kind == "force-folder":
            done = [each for each in self.changes if op.node in (each.at[0], each.to[0])]
            self.changes = [each for each in self.changes if each not in done]
            for each in done:
                self.change_folder(each)
        else:
            if op.kind == "make" and op.data is None:
                self.folders[op.node] = {}
            elif op.kind == "make":
                self.files[op.node] = bytearray()
            self.changes.append(op)

    def change_file(self, op: Op, torn: int | None = None) -> None:
        content = self.files[op.node]
        if op.kind == "cut":
            del content[op.place :]
            return
        data = (op.data or b"")[:torn]
        content.extend(bytes(max(0, op.place + len(data) - len(content))))
        content[op.place : op.place + len(data)] = data

    def change_folder(self, op: Op) -> None:
        folder, name = op.at
        if op.kind == "make":
            self.folders[folder][name] = op.node
        elif self.folders[folder].get(name) == op.node:
            del self.folders[folder][name]
        if op.kind == "move":
            self.folders[op.to[0]][op.to[1]] = op.node

    def cut_power(self, rng: random.Random, kept: float) -> None:
        """Of what is not certain, about such a part is there."""
        for op in self.changes:
            if rng.random() < kept:
                self.change_folder(op)
        for ops in self.writes.values():
            for op in ops:
                if rng.random() < kept:
                    self.change_file(op, None if kept == 1 or not op.data else rng.randint(1, len(op.data)))

    def lay_out(self, folder: Path, node: int = 0) -> None:
        folder.mkdir()
        for name, each in self.folders[node].items():
            if each in self.folders:
                self.lay_out(folder / name, each)
            else:
                (folder / name).write_bytes(self.files[each])


def everything(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != ".lock")
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}
