"""All runs under a folder, quickly: of each a few small files, and those only if they have changed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..base.documents import json_object
from ..base.errors import UserError
from ..runs.page import is_running
from ..runs.result_file import RESULT
from ..settings.keys import read_document

DEEP = 6  # folders within folders
TAIL = 1 << 20  # bytes of rounds.jsonl that the last tests are looked for in
FILES = ("run.toml", RESULT, "rounds.jsonl")
Stamp = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Listed:
    path: str  # below the folder that is listed
    method: str
    data: str
    backbone: str
    seed: int
    rounds: int
    done: int
    before: float | None  # zero-shot CLIP's overall accuracy
    shared: float | None
    personal: float | None
    finished: bool
    changed: float  # when
    running: bool = False

    @property
    def status(self) -> str:
        return "finished" if self.finished else "running" if self.running else "stopped"

    @property
    def gain(self) -> float | None:
        return None if self.before is None or self.shared is None else self.shared - self.before


class Listing:
    def __init__(self, root: Path) -> None:
        self.root, self.known = root, dict[Path, tuple[Stamp, Listed]]()

    def runs(self) -> list[Listed]:
        """The newest first."""
        found = [it for folder in walk(self.root) if (it := self.read(folder))]
        return sorted(found, key=lambda it: (-it.changed, it.path))

    def read(self, folder: Path) -> Listed | None:
        """None if it is no run any more, or cannot be read."""
        stamp = stamp_of(folder)
        if folder not in self.known or self.known[folder][0] != stamp:
            try:
                self.known[folder] = stamp, read_listed(self.root, folder, stamp)
            except (UserError, OSError, ValueError, KeyError, TypeError):
                return None
        listed = self.known[folder][1]
        return listed if listed.finished else Listed(**{**vars(listed), "running": is_running(folder)})


def walk(root: Path, deep: int = DEEP) -> Iterator[Path]:
    """Run folders; not what is within them, nor those that settings were only chosen by."""
    try:
        entries = sorted(os.scandir(root), key=lambda it: it.name)
    except OSError:
        return
    if any(entry.name == "run.toml" for entry in entries):
        yield root
    elif deep:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False) and entry.name != "tune" and not entry.name.startswith("."):
                yield from walk(Path(entry.path), deep - 1)


def stamp_of(folder: Path) -> Stamp:
    """Another one whenever something was written."""
    stamp = []
    for name in FILES:
        try:
            stat = (folder / name).stat()
            stamp.append((stat.st_mtime_ns, stat.st_size))
        except FileNotFoundError:
            stamp.append((0, 0))
    return tuple(stamp)


def read_listed(root: Path, folder: Path, stamp: Stamp) -> Listed:
    settings = read_document(folder / "run.toml")
    result: dict[str, Any] | None = None
    if stamp[1] != (0, 0):
        result = json_object((folder / RESULT).read_bytes())
    done, last = last_rounds(folder / "rounds.jsonl")
    scores = result or last or {}
    return Listed(
        path=folder.relative_to(root).as_posix(),
        method=str(settings["method"]["name"]),
        data=str(settings["data"]["name"]),
        backbone=str(settings["backbone"]["name"]),
        seed=int(settings["seed"]),
        rounds=int(settings["rounds"]),
        done=done,
        before=result["zero_shot"]["overall"] if result else None,
        shared=(scores.get("global") or {}).get("overall"),
        personal=(scores.get("personal") or {}).get("overall"),
        finished=result is not None,
        changed=max(at for at, _ in stamp) / 1e9,
    )


def last_rounds(path: Path) -> tuple[int, dict[str, Any] | None]:
    """How many rounds are done, and the last one that was tested, if that is not long ago."""
    if not path.is_file():
        return 0, None
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - TAIL))
        text = file.read()
    lines = text[: text.rfind(b"\n") + 1].splitlines()  # one may just be written
    if size > TAIL:
        lines = lines[1:]  # begun before
    done = int(json_object(lines[-1])["round"]) if lines else 0
    for line in reversed(lines):
        row = json_object(line)
        if row["global"] is not None:
            return done, dict(row)
    return done, None
