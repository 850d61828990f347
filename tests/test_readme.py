"""The commands and the code of README and quickstart work as written (all but the installs)."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import Call

ROOT = Path(__file__).parent.parent
PAGES = ("README.md", "docs/quickstart.md")
# Needs a download; the words are tested up to the point where it is missing.
OUTSIDE = ("openai/", "folder:photos", "runs/…", "FOLDER", "PATH/")


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)


def commands() -> list[str]:
    lines = [line for page in PAGES for block in blocks(page, "bash") for line in block.splitlines()]
    parts = [part.strip() for line in lines for part in line.split("&&")]
    return list(dict.fromkeys(part for part in parts if part.startswith("fedtailor ")))


def process(words: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    where = Path(sys.executable).parent
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PATH": f"{where}{os.pathsep}{os.environ['PATH']}"}
    return subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def words_of(command: str) -> list[str]:
    return shlex.split(command, comments=True)[1:]


INSIDE = [c for c in commands() if not any(mark in c for mark in OUTSIDE)]


def shorter(words: list[str]) -> list[str]:
    """A single round and seed, and one cell of a table."""
    one_cell = ["--cells", "both-with-clusters"] if words[0] == "reproduce" else []
    one_round = ["rounds=1"] if words == ["run"] else []
    once = [re.sub(r"\b(rounds|method\.T_p)=\d+$", r"\1=1", word) for word in words]
    return [*once, *one_cell, *one_round, *(["--seeds", "1"] if "--seeds" in words else [])]


@pytest.mark.parametrize("command", INSIDE)
def test_command(command: str, call: Call) -> None:
    """In this process, and with less to do."""
    done = call(*shorter(words_of(command)))
    assert done.code == 0, done.err
    assert done.out.strip()


@pytest.mark.slow
@pytest.mark.parametrize("command", [c for c in INSIDE if shorter(words_of(c)) != words_of(c)])
def test_command_as_it_is(command: str, tmp_path: Path) -> None:
    """In a process of its own, to the last round."""
    done = process(["fedtailor", *words_of(command)], tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    if words_of(command) == ["run"]:
        assert "40 rounds in" in done.stdout


@pytest.mark.parametrize("command", [c for c in commands() if any(mark in c for mark in OUTSIDE)])
def test_command_that_needs_a_download_says_so(command: str, call: Call) -> None:
    """Its settings are right: what stops it is what is missing here, and it says what."""
    done = call(*shlex.split(command)[1:])
    assert done.code == 2
    assert "error:" in done.err
    assert not re.search("unknown|given twice|should be", done.err), done.err


def is_an_outcome(printed: str) -> None:
    numbers = [float(n) for n in re.findall(r"\d+\.\d+", printed)]
    assert len(numbers) == 2
    assert all(0 <= n <= 100 for n in numbers)


def test_python_of_the_readme(tmp_path: Path) -> None:
    """In a process of its own, where a warning is an error."""
    (code,) = blocks("README.md", "python")
    assert len([line for line in code.splitlines() if line]) <= 5
    done = process([sys.executable, "-W", "error", "-c", code], tmp_path)
    assert done.returncode == 0, done.stderr
    is_an_outcome(done.stdout)


def test_python_of_the_quickstart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (code,) = blocks("docs/quickstart.md", "python")
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "quickstart", "exec"), {})
    is_an_outcome(capsys.readouterr().out)


def test_the_test_command_is_what_ci_runs() -> None:
    """.ci/run takes the line after the marker; there must be exactly one."""
    after = (ROOT / "README.md").read_text().split("<!-- tests -->")[1]
    lines = re.findall(r"^pip install.*$", after, re.MULTILINE)
    assert lines == ["pip install -c constraints.txt -e '.[dev]' && pytest -n 2"]
