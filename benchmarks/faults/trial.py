"""One command, tried in a process of its own that has everything loaded: what came of it, and what it said."""

from __future__ import annotations

import errno
import os
import resource
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SECONDS = 60  # longer is a hang
MEMORY = 12 << 30  # bytes of addresses


@dataclass(frozen=True)
class Came:
    code: int  # negative: the signal that ended it
    said: str

    @property
    def outcome(self) -> str:
        if "Traceback (most recent call last)" in self.said:
            return "a traceback"
        if self.code == -signal.SIGALRM:
            return "a hang"
        return "killed" if self.code < 0 else "a sentence" if self.code == 2 else "done" if self.code == 0 else "exit 1"

    @property
    def sentence(self) -> str:
        lines = [line for line in self.said.splitlines() if line.strip()]
        return next((line for line in lines if line.startswith("error: ")), lines[-1] if lines else "")


def attempt(words: Sequence[str], folder: Path, spoilt: Callable[[], object] = lambda: None) -> Came:
    """`fedtailor …` in that folder. `spoilt` makes the process's world another one first."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        for stream in (1, 2):
            os.dup2(writing, stream)
        os._exit(go(words, folder, spoilt))
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        said = pipe.read()
    status = os.waitpid(child, 0)[1]
    code = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
    return Came(code, said.decode("utf-8", "surrogateescape"))


def go(words: Sequence[str], folder: Path, spoilt: Callable[[], object]) -> int:
    from fedtailor.cli import main

    sys.stdout, sys.stderr = (open(stream, "w", closefd=False, encoding="utf-8") for stream in (1, 2))  # noqa: SIM115
    os.environ["COLUMNS"] = "120"
    code: Any = 0
    try:
        os.chdir(folder)
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        signal.alarm(SECONDS)
        sys.argv = ["fedtailor", *words]
        spoilt()
        main()
    except SystemExit as end:
        code = end.code or 0
    except BaseException:  # whatever it is, the process ends here
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    return code if isinstance(code, int) else 1


# --- disks that refuse ------------------------------------------------------------------------------------------------


def read_only(folder: Path) -> Callable[[], None]:
    """Everything below a folder can be read, and nothing changed."""

    def refuse(event: str, given: tuple[Any, ...]) -> None:
        changes = event in ("os.mkdir", "os.rename", "os.remove", "os.truncate", "os.rmdir", "os.utime")
        if event == "open":
            changes = bool((given[2] or 0) & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))
        if changes and isinstance(given[0], str | bytes | os.PathLike):
            path = Path(os.fsdecode(given[0])).absolute()
            if path.is_relative_to(folder):
                raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    return lambda: sys.addaudithook(refuse)


def full(most: int) -> Callable[[], None]:
    """No file grows beyond so many bytes: what a full disk and a quota do, at the write itself."""
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
