"""A site's log of what left it and what it refused: JSON lines, each with the hash of the line before.

A line is on the disk before its reply leaves. Who changes a line, or takes one out, breaks the chain, which is looked
at whenever a site starts. A broken chain is never continued: a new one begins in a new file, and says so. What hashes
cannot show is that the last lines are gone, or that all were written anew: for that, keep the last hash elsewhere.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ..base.files import write_atomic

log = logging.getLogger("fedtailor.site")
FIRST = "0" * 64  # in place of the hash of a line before
LARGEST = 8 << 20  # bytes of a file, after which the next is begun
BROKEN = "broken chain"  # what the first line of a new chain is about


@dataclass(frozen=True)
class Line:
    place: str
    facts: dict[str, Any]
    trouble: str  # why it does not follow from the line before; empty: it does
    begins: bool  # a new chain, after one that was broken
    hash: str


def files_of(folder: Path) -> list[Path]:
    return sorted(folder.glob("audit-*.jsonl"))


def read_lines(folder: Path) -> Iterator[Line]:
    """Every line. The first may follow from any: files before it may have been taken elsewhere."""
    before = ""
    for file in files_of(folder):
        for number, raw in enumerate(file.read_bytes().splitlines(keepends=True), 1):
            facts, trouble = parsed(raw)
            begins = number == 1 and facts.get("what") == BROKEN and facts["before"] == FIRST
            if facts and before and facts["before"] != before and not begins:
                trouble = "it does not follow from the line before, which is gone or was changed"
            before = hashlib.sha256(raw).hexdigest()
            yield Line(f"{file.name}, line {number}", facts, trouble, begins, before)


def parsed(raw: bytes) -> tuple[dict[str, Any], str]:
    """What a line holds, and why it is none."""
    if not raw.endswith(b"\n"):
        return {}, "it is cut short, as when the power fails"
    try:
        facts = json.loads(raw)
    except ValueError:
        facts = None
    texts = ("before", "at", "to", "what")
    if not isinstance(facts, dict) or not all(isinstance(facts.get(name), str) for name in texts):
        return {}, "it is not a line of this log"
    return facts, ""


class AuditLog:
    def __init__(self, folder: Path, to: str) -> None:
        """`to`: whom all of it is sent to."""
        self.folder, self.to = folder, to
        folder.mkdir(parents=True, exist_ok=True)
        files = files_of(folder)
        self.number = int(files[-1].stem.removeprefix("audit-")) if files else 1
        self.before = FIRST
        troubles: list[str] = []
        for line in read_lines(folder):
            if line.begins:
                troubles = []  # what was before has been told
            if line.trouble:
                troubles.append(f"{line.place}: {line.trouble}")
            self.before = line.hash
        if troubles:
            told = "; ".join(troubles)
            log.error("THE LOG OF WHAT LEFT THIS SITE IS BROKEN (%s). A new chain begins", told)
            self.number, self.before = self.number + 1, FIRST
            self.add(what=BROKEN, detail=told)

    @property
    def file(self) -> Path:
        return self.folder / f"audit-{self.number:06}.jsonl"

    def add(self, **facts: Any) -> None:
        """A line, on the disk when this returns; an error if that cannot be, since without a line nothing may leave."""
        if self.file.is_file() and self.file.stat().st_size >= LARGEST:
            self.number += 1
        if not self.file.is_file():
            write_atomic(self.file, b"", private=True)
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        line = json.dumps({"before": self.before, "at": now, "to": self.to, **facts}).encode() + b"\n"
        with self.file.open("r+b", buffering=0) as file:
            end = file.seek(0, os.SEEK_END)
            try:
                if file.write(line) < len(line):
                    raise OSError("a line of the log could not be written whole")
                os.fsync(file.fileno())
            except OSError:
                file.truncate(end)  # or the next line would begin in the middle of this one
                raise
        self.before = hashlib.sha256(line).hexdigest()
