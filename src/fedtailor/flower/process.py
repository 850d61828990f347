"""How our process ends, and another that is kept going: started again when it ends, a little later each time it ends
soon."""

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from shutil import copyfile
from subprocess import DEVNULL, Popen, TimeoutExpired

from ..base.polling import Backoff

log = logging.getLogger("fedtailor.flower")
PAUSES = 1.0, 30.0  # seconds before it is started again: the first time, and at most
LOOK = 60.0  # seconds between two looks at how long its log is
LARGEST = 4 << 20  # bytes of that
ALIVE = "alive"  # a file that a SuperNode touches whenever its server has answered
STEADY = 60.0  # seconds after which it counts as running well


class BrokenOff(BaseException):
    """Work, by a signal. Like `kill -9` it may come at any moment, and what was not finished leaves no trace."""


class Over(threading.Event):
    """Set once this process is told to end."""

    breakable = False  # whether the work under way ends at its next line
    by_ctrl_c = False

    def told(self, signal_: int, _: object) -> None:
        self.by_ctrl_c = signal_ == signal.SIGINT
        self.set()
        if self.breakable:
            self.breakable = False  # what is done in its end is not broken off in turn
            raise BrokenOff

    @contextmanager
    def may_break_off(self) -> Iterator[None]:
        """Work that may take long: a pass, a test, pictures to be encoded. In the main thread, where signals come."""
        try:
            self.breakable = True
            if self.is_set():
                raise BrokenOff
            yield
        finally:
            self.breakable = False

    def end(self) -> None:
        """With the exit code of whatever it was."""
        log.info("stopped")
        if self.by_ctrl_c:
            raise KeyboardInterrupt


def until_signal() -> Over:
    over = Over()
    for name in (signal.SIGINT, signal.SIGTERM):
        signal.signal(name, over.told)
    return over


class ManagedProcess:
    def __init__(self, module: str, words: Sequence[str], log_file: Path, home: Path) -> None:
        """`python -m module OWN-PID *words`; what it prints goes to the log file."""
        self.command = [sys.executable, "-m", module, str(os.getpid()), *words]
        self.name, self.log_file = module.rsplit(".", 1)[-1], log_file
        self.environment = {**os.environ, "FLWR_HOME": str(home), "PYTHONUNBUFFERED": "1"}
        self.process: Popen[bytes] | None = None
        self.over, self.thread = threading.Event(), threading.Thread(target=self.keep, daemon=True)

    def __enter__(self) -> None:
        self.log_file.parent.mkdir(parents=True, exist_ok=True)
        self.thread.start()

    def keep(self) -> None:
        pause = Backoff(*PAUSES)
        while not self.over.is_set():
            began = time.monotonic()
            with self.log_file.open("ab") as out:
                self.process = Popen(self.command, stdin=DEVNULL, stdout=out, stderr=out, env=self.environment)
                while self.process.poll() is None:
                    self.begin_anew()
                    with suppress(TimeoutExpired):
                        self.process.wait(timeout=LOOK)
            if self.over.is_set():
                return
            if time.monotonic() - began > STEADY:
                pause.reset()
            seconds = pause.next()
            log.warning("%s; trying again in %.0f s", self.last_words(), seconds)
            self.over.wait(seconds)

    def begin_anew(self) -> None:
        """Its log, if that has grown long; what there was is kept beside it."""
        if self.log_file.stat().st_size > LARGEST:
            copyfile(self.log_file, self.log_file.with_name(f"{self.log_file.name}.1"))
            os.truncate(self.log_file, 0)  # it goes on at the end, wherever that is

    def last_words(self) -> str:
        """Why it ended, as far as it said."""
        lines = [line.strip() for line in self.log_file.read_text(errors="replace").splitlines()[-40:]]
        told = [line for line in lines if "code:" in line or "rror" in line or "refused" in line]
        return f"Flower's {self.name} ended ({told[-1] if told else 'it did not say why'}; see {self.log_file})"

    def __exit__(self, *_: object) -> None:
        self.over.set()
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(timeout=10)
            except TimeoutExpired:
                self.process.kill()
        self.thread.join(timeout=15)
