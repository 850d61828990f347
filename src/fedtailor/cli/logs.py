"""What a server and a site say while they run: on a terminal, in the journal or in lines of JSON, and in files.

All of it comes from `logging`. Beside its sentence a record may bear `facts`, for machines, and `now`: what goes on
from then on, for the last line of a terminal.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from logging.handlers import RotatingFileHandler
from pathlib import Path
from textwrap import indent

from rich.logging import RichHandler
from rich.status import Status

from ..base.errors import UserError
from ..base.terminal import Terminal, visible

FORMS = ("text", "json")
LARGEST, KEPT = 4 << 20, 5  # bytes of a file, and how many older ones there are
PRIORITIES = {"DEBUG": 7, "INFO": 6, "WARNING": 4, "ERROR": 3, "CRITICAL": 2}  # of syslog


class Sentence(logging.Formatter):
    """In one line, since what is in it may come from elsewhere. Below it, how an unforeseen error came about."""

    def format(self, record: logging.LogRecord) -> str:
        text = visible(record.getMessage()).replace("\n", "\\n")
        return f"{text}\n{indent(visible(self.formatException(record.exc_info)), '    ')}" if record.exc_info else text


class Dated(Sentence):
    def format(self, record: logging.LogRecord) -> str:
        return f"{moment(record)} {record.levelname} {super().format(record)}"


class Journal(Dated):
    """With the number by which journald knows how bad it is, before each line."""

    def format(self, record: logging.LogRecord) -> str:
        return indent(super().format(record), f"<{PRIORITIES[record.levelname]}>")


class Json(Sentence):
    def format(self, record: logging.LogRecord) -> str:
        row = {"at": moment(record), "level": record.levelname.lower(), "message": record.getMessage()}
        if record.exc_info:
            row["error"] = self.formatException(record.exc_info)
        return json.dumps({**row, **getattr(record, "facts", {})})


class LastLine(logging.Handler):
    """What goes on, at the bottom of a terminal."""

    def __init__(self, status: Status) -> None:
        super().__init__()
        self.status = status

    def emit(self, record: logging.LogRecord) -> None:
        if now := getattr(record, "now", ""):
            self.status.update(visible(now))


def moment(record: logging.LogRecord) -> str:
    """In local time, which says how far that is from UTC."""
    return datetime.fromtimestamp(record.created).astimezone().isoformat(timespec="milliseconds")


@contextmanager
def logging_to(file: Path, form: str) -> Iterator[None]:
    """Everything to the file, and what matters to stderr."""
    if form not in FORMS:
        raise UserError(f"--log {form}: it is one of {', '.join(FORMS)}")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        kept = RotatingFileHandler(file, maxBytes=LARGEST, backupCount=KEPT, encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot write the log {file}: {error.strerror}; make it writable") from error
    kept.setFormatter(Dated())
    console = Terminal(stderr=True)
    status = console.status("starting") if console.is_terminal and form == "text" else None
    handlers = [kept, shown(console, form), *([LastLine(status)] if status else [])]
    root, ours = logging.getLogger(), logging.getLogger("fedtailor")
    for handler in handlers:
        root.addHandler(handler)
    logging.getLogger("flwr").setLevel(logging.WARNING)
    ours.setLevel(logging.DEBUG)
    if status:
        status.start()
    try:
        yield
    finally:
        if status:
            status.stop()
        ours.setLevel(logging.NOTSET)
        for handler in handlers:
            root.removeHandler(handler)
            handler.close()


def shown(console: Terminal, form: str) -> logging.Handler:
    """On stderr: in colours for a person, in lines for whatever collects them."""
    if console.is_terminal and form == "text":
        made: logging.Handler = RichHandler(console=console, show_path=False, markup=False, log_time_format="%X")
        made.setFormatter(Sentence())
    else:
        made = logging.StreamHandler(sys.stderr)
        made.setFormatter(Json() if form == "json" else Journal() if "JOURNAL_STREAM" in os.environ else Dated())
    made.setLevel(logging.INFO)
    return made
