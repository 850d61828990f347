"""What is printed is whole: keys, paths and commands can be copied, wherever the output goes."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
from rich.table import Table

from conftest import Call
from fedtailor.cli.output import display
from fedtailor.settings.keys import parse


@pytest.mark.parametrize("method", ["capt", "fedcopl", "fedpurel"])
def test_a_page_in_a_pipe(method: str, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    """Broken: a key is cut by an ellipsis, or broken in two, where `fedtailor show` is read by another program."""
    monkeypatch.setenv("COLUMNS", "80")
    page, facts = call("show", method).out, json.loads(call("show", method, "--json").out)
    keys = [row["key"] for rows in facts["settings"].values() for row in rows]
    assert len(keys) > 40
    assert [key for key in keys if not re.search(rf"^ {re.escape(key)} ", page, re.MULTILINE)] == []
    assert "…" not in page.partition("method\n")[2]


def test_the_doctor_asks_for_whole_paths(call: Call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Broken: nobody can tell from its output where a dataset should be."""
    root = tmp_path / ("far" * 30) / "away"
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("FEDTAILOR_DATA", str(root))
    assert str(root / "cifar-10-batches-py" / "batches.meta") in call("doctor").out


@pytest.mark.parametrize("width", [30, 50, 80])
def test_a_narrow_terminal(width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Broken: what does not fit a terminal's line is lost, not folded."""
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich then takes it for a terminal
    table, words = Table("key", "meaning"), ["tuner.class_prompt.a_long_key_indeed", "why_would_that_be_so_long"]
    table.add_row(*words)
    display(table)
    lines = [line.split("│") for line in re.sub(r"\x1b\[[\d;]*m", "", capsys.readouterr().out).splitlines()]
    cells = [line[1:3] for line in lines if len(line) == 4]
    assert ["".join(part.strip() for part in column) for column in zip(*cells, strict=True)] == words


def test_commands_of_a_plan_can_be_run(call: Call, tmp_path: Path) -> None:
    """Broken: a command that --dry-run shows is wrapped, lacks its quotes, or names another folder than was given."""
    root = tmp_path / "my data" / ("deep" * 20)
    answer = call("reproduce", "capt/table1", "--scale", "lab", "--dry-run", f"data.root={root}", "--cells", "*/capt/*")
    commands = [shlex.split(line) for line in answer.out.splitlines() if line.startswith("fedtailor run")]
    assert len(commands) == 9
    assert all(parse(words[3:])["data.root"] == str(root) for words in commands)


def test_the_last_line_is_whole(call: Call, tmp_path: Path, small: dict[str, object]) -> None:
    """Broken: the folder that a run names is broken over two lines in a pipe."""
    out = tmp_path / ("deep" * 40) / "mine"
    words = [f"{key}={value}" for key, value in {**small, "rounds": 1}.items()]
    assert call("run", "promptfl", *words, "--out", str(out)).out.endswith(f"MB · {out}\n")
