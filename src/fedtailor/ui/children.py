"""Runs that this server has started, each a process of its own: `python -m fedtailor run …`.

When the server stops, they are stopped as by Ctrl-C: nobody would see them any more, and they can be gone on with.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from ..base.errors import UserError

PATIENCE = 15.0  # seconds to save a round in; a run that is killed after that loses this round and nothing else
LINES, TAIL = 12, 8000  # lines and bytes of what a process said last


class Child:
    def __init__(self, folder: Path, words: Sequence[str]) -> None:
        self.folder, self.words, self.stopped = folder, list(words), False
        self.log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  # as long as the process; it has no name
        # In a session of its own: Ctrl-C at the terminal is for the server, which passes it on.
        self.process = subprocess.Popen(
            [sys.executable, "-m", "fedtailor", *self.words], stdin=subprocess.DEVNULL, stdout=self.log,
            stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip

    @property
    def command(self) -> str:
        return shlex.join(["fedtailor", *self.words])

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    @property
    def failed(self) -> bool:
        return not self.stopped and self.process.poll() not in (None, 0, 130)

    def stop(self) -> None:
        self.stopped = True
        if self.alive:
            self.process.send_signal(signal.SIGINT)

    def said(self) -> str:
        """Its last lines."""
        size = os.fstat(self.log.fileno()).st_size
        text = os.pread(self.log.fileno(), TAIL, max(0, size - TAIL))  # leaves the place that the process writes at
        return "\n".join(text.decode(errors="replace").strip().splitlines()[-LINES:])


class Children:
    def __init__(self) -> None:
        self.all: dict[Path, Child] = {}

    def of(self, folder: Path) -> Child | None:
        return self.all.get(folder)

    def start(self, folder: Path, words: Sequence[str]) -> Child:
        if (child := self.of(folder)) and child.alive:
            raise UserError(f"{folder} is running already")
        if child:
            child.log.close()
        self.all[folder] = Child(folder, words)
        return self.all[folder]

    def stop(self, folder: Path) -> None:
        child = self.of(folder)
        if child is None or not child.alive:
            raise UserError(f"{folder} was not started here, or has ended; press Ctrl-C where it was started")
        child.stop()

    def end(self) -> list[Child]:
        """Stop all that still run, and wait for them. Those that were."""
        alive = [child for child in self.all.values() if child.alive]
        for child in alive:
            child.stop()
        until = time.monotonic() + PATIENCE
        for child in alive:
            try:
                child.process.wait(max(0.1, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                child.process.kill()
                child.process.wait()
        for child in self.all.values():
            child.log.close()
        return alive
