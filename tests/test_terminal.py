"""Whatever a class, a site or a file is called: it is shown as it is, and steers no terminal."""

from __future__ import annotations

import json
import logging
import os
import re
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from rich.table import Table
from rich.text import Text

from conftest import Call
from fedtailor.base.errors import Note
from fedtailor.base.terminal import STEERING, Terminal, visible
from fedtailor.cli import main, tell
from fedtailor.cli.output import display, emit, say, write

# A name, and how it is shown.
NAMES = {
    "[red]x[/red]": "[red]x[/red]",
    "[/]": "[/]",
    ":dog:": ":dog:",
    "\x1b[31mred": r"\x1b[31mred",
    "\x1b]0;title\x07": r"\x1b]0;title\x07",
    "a\rb": r"a\rb".replace(r"\r", r"\x0d"),
    "a\x9bb\x85": r"a\x9bb\x85",
    "a\u202eb\u2066": r"a\u202eb\u2066",
    os.fsdecode(b"a\xffb"): r"a\xffb",
    "Ölpest, 猫, כלב": "Ölpest, 猫, כלב",
}


def ways(name: str) -> dict[str, Callable[[], None]]:
    table = Table(name, title=name, caption=name)
    table.add_row(name)
    return {
        "say": lambda: say(name, "yellow"),
        "table": lambda: display(table),
        "csv": lambda: write(f"picture,{name}\n"),
        "note": lambda: tell(Note(name), Note, "x.py", 1),
        "warning": lambda: tell(UserWarning(name), UserWarning, f"{name}.py", 1),
    }


@pytest.mark.parametrize(("name", "shown"), NAMES.items())
def test_every_way_out(name: str, shown: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Broken: one of the ways in which text comes to the terminal takes it for markup, or lets it through raw."""
    for way, go in ways(name).items():
        go()
        told = "".join(capsys.readouterr())
        assert shown in told, way
        assert not STEERING.search(told), (way, ascii(told))
    Terminal().print(Text(name))  # of which rich itself leaves out some
    assert not STEERING.search(capsys.readouterr().out)


@pytest.mark.parametrize("name", NAMES)
def test_in_colour(name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Broken: on a real terminal, where sequences of ours are among it, those of others are too."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    for way, go in ways(name).items():
        go()
        told = "".join(capsys.readouterr())
        assert "\x1b[31m" not in told, way  # no table here is red
        assert not STEERING.search(re.sub(r"\x1b\[[\d;]*m", "", told)), (way, ascii(told))


@pytest.mark.parametrize("name", NAMES)
def test_json_is_the_same_document(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    emit({name: [name]})
    told = capsys.readouterr().out
    assert json.loads(told) == {name: [name]}
    assert not STEERING.search(told)


def test_progress(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Rich's own bars take markup by default; ours are told not to, and what they show goes the same way."""
    from fedtailor.cli.progress import Progress

    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "140")
    with Progress(enabled=True) as progress:
        progress.on_progress("[/] a\x9b\u202eb", 1, 2)
        progress.bars.refresh()
    told = capsys.readouterr().err
    assert r"[/] a\x9b\u202eb" in told


def test_what_is_shown_already_is_shown_the_same() -> None:
    for name in NAMES:
        assert visible(visible(name)) == visible(name)


HOSTILE = "a\x1b[31mb\rc\x07[red]\u202e"
OUT = f"{HOSTILE} run"


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """A dataset whose classes and sites are called so, in a folder that is, too."""
    rng, root = np.random.default_rng(0), tmp_path / HOSTILE
    for site in ("one", HOSTILE):
        for name in ("[red]x", f"{HOSTILE} b"):
            (root / site / "train" / name).mkdir(parents=True)
            (root / site / "test" / name).mkdir(parents=True)
            for i in range(4):
                picture = Image.fromarray(rng.integers(0, 255, (32, 32, 3)).astype(np.uint8))
                picture.save(root / site / "train" / name / f"{i}{HOSTILE}.png")
                picture.save(root / site / "test" / name / f"{i}{HOSTILE}.png")
    (root / "one" / "test" / f"{HOSTILE} b" / f"0{HOSTILE}.png").write_bytes(b"no picture")
    return root


def test_from_pictures_to_predictions(hostile: Path, tiny: Path, call: Call, tmp_path: Path) -> None:
    """Broken: a verb prints past the one place, or takes a name for markup."""
    brief = [f"backbone={tiny}", "threads=1", "rounds=1", "batch=4", "data.broken=skip"]
    picture = hostile / "one" / "train" / "[red]x" / f"0{HOSTILE}.png"
    answers = {
        "check": call("data", "check", f"folder:{hostile}"),
        "show": call("data", "show", f"folder:{hostile}", "data.broken=skip"),
        "run": call("run", "promptfl", f"data=folder:{hostile}", *brief, "--out", OUT),
        "json": call("run", "--resume", OUT, "--json"),
        "predict": call("predict", OUT, str(picture)),
        "csv": call("predict", OUT, str(picture), "--csv"),
        "client": call("predict", OUT, str(picture), "--client", HOSTILE),
        "evaluate": call("evaluate", OUT, str(hostile / "one" / "train")),
        "report": call("report", OUT),
        "plot": call("plot", OUT, "--figure", "curves"),
        "compare": call("compare", "--runs", OUT),
        "missing": call("predict", OUT, f"{HOSTILE}.png"),
        "no run": call("report", f"no{HOSTILE}"),
        "no option": call("report", f"--no{HOSTILE}"),
        "no word": call("run", f"no{HOSTILE}=3"),
    }
    codes = {name: answer.code for name, answer in answers.items() if answer.code}
    assert codes == {"check": 1, "missing": 2, "no run": 2, "no option": 2, "no word": 2}
    for name, answer in answers.items():
        told = answer.out + answer.err
        assert not STEERING.search(told), (name, ascii(told))
        assert r"\x1b[31mb" in told or r"\u001b[31mb" in told, (name, told)
    assert "[red]x" in answers["show"].out
    assert "[red]x" in answers["evaluate"].out
    assert json.loads(answers["json"].out)["run_dir"] == OUT


def test_warnings_and_logs(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """What libraries and trackers say goes the same way while a command runs, and as before when it is over."""
    before = warnings.showwarning

    def told(**_: object) -> int:
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.showwarning = tell  # catch_warnings has put its own there
            warnings.warn(HOSTILE, Note, stacklevel=1)
        assert logging.lastResort is not None
        logging.lastResort.emit(logging.LogRecord("x", logging.WARNING, "x", 1, HOSTILE, (), None))
        return 0

    monkeypatch.setattr("fedtailor.cli.app", told)
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    assert capsys.readouterr().err == f"{visible(HOSTILE)}\n" * 2
    assert warnings.showwarning is before
