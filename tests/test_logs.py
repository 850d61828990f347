"""What servers and sites say: for people, the journal and programs, in one line each, and in files that do not grow."""

from __future__ import annotations

import io
import json
import logging
import re
from functools import partial
from pathlib import Path

import pytest

from fedtailor.base.errors import UserError
from fedtailor.base.terminal import Terminal
from fedtailor.cli import logs
from fedtailor.cli.logs import KEPT, logging_to

log = logging.getLogger("fedtailor.site")
DATE = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}[+-]\d\d:\d\d"
FORGED = "no such class: cat\n2026-11-20T00:00:00 INFO all is well \x1b[2J"


def fail() -> None:
    raise ValueError("no\nnumber")


def say_things() -> None:
    log.debug("details", extra={"now": "at work"})
    log.info("round %d of %d", 3, 20, extra={"facts": {"round": 3, "bytes": 12}, "now": "waiting"})
    log.warning("%s", FORGED)
    try:
        fail()
    except ValueError:
        log.exception("failed")
    logging.getLogger("httpx").info("GET /")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "home" / "log" / "site.log"


def test_lines_with_date_and_level(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """None is forged by what is in another, and there is nothing in them for a terminal. The file has all, by day."""
    with logging_to(file, "text"):
        say_things()
    log.warning("afterwards")
    out, err = capsys.readouterr()
    assert out == ""
    heads = [line for line in err.splitlines() if not line.startswith("    ")]
    assert [re.sub(f"^{DATE} ", "", line) for line in heads if re.match(DATE, line)] == [
        "INFO round 3 of 20",
        r"WARNING no such class: cat\n2026-11-20T00:00:00 INFO all is well \x1b[2J",
        "ERROR failed",
    ]
    assert "    ValueError: no\n    number\n" in err
    assert "\x1b" not in err
    lines = file.read_text().splitlines()
    assert lines[0].endswith("DEBUG details")
    assert [line for line in lines if "DEBUG" not in line] == err.splitlines()


def test_a_json_object_a_line(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with logging_to(file, "json"):
        say_things()
    told, forged, failed = (json.loads(line) for line in capsys.readouterr().err.splitlines())
    assert re.fullmatch(DATE, told.pop("at"))
    assert told == {"level": "info", "message": "round 3 of 20", "round": 3, "bytes": 12}
    assert (forged["level"], forged["message"]) == ("warning", FORGED)
    assert "ValueError: no\nnumber" in failed["error"]


def test_journald_knows_how_bad_it_is(
    file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of every line, those below an error too."""
    monkeypatch.setenv("JOURNAL_STREAM", "8:1")
    with logging_to(file, "text"):
        say_things()
    first, second, *rest = capsys.readouterr().err.splitlines()
    assert re.match(f"<6>{DATE} INFO", first)
    assert second.startswith("<4>")
    assert len(rest) > 4
    assert {line[:3] for line in rest} == {"<3>"}
    assert "<6>" not in file.read_text()


def test_a_terminal_has_what_goes_on_in_its_last_line(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    monkeypatch.setattr(
        logs, "Terminal", partial(Terminal, force_terminal=True, color_system=None, file=screen, width=100)
    )
    seen: list[str] = []
    real = logs.Status.update
    monkeypatch.setattr(logs.Status, "update", lambda status, text: (seen.append(text), real(status, text)))
    with logging_to(file, "text"):
        say_things()
        log.info("more", extra={"now": "x\x1b[2J"})
    assert seen == ["at work", "waiting", r"x\x1b[2J"]
    assert "round 3 of 20" in screen.getvalue()
    assert "details" not in screen.getvalue()
    assert "\x1b[2J" not in screen.getvalue()


def test_files_do_not_grow(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "LARGEST", 1000)
    with logging_to(file, "text"):
        for n in range(500):
            log.debug("line %d", n)
    kept = sorted(file.parent.iterdir())
    assert len(kept) == KEPT + 1
    assert all(path.stat().st_size <= 1000 for path in kept)
    assert "line 499" in file.read_text()


def test_another_form_is_refused(file: Path) -> None:
    with pytest.raises(UserError, match="--log xml: it is one of text, json"), logging_to(file, "xml"):
        pass
    file.parent.parent.write_text("")
    with pytest.raises(UserError, match="cannot write the log"), logging_to(file, "text"):
        pass
