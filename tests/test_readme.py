"""The README's and the quickstart's commands and code, run as written (all but the installs)."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

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


def call(words: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    where = Path(sys.executable).parent
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PATH": f"{where}{os.pathsep}{os.environ['PATH']}"}
    return subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("command", [c for c in commands() if not any(mark in c for mark in OUTSIDE)])
def test_command(command: str, tmp_path: Path) -> None:
    done = call(shlex.split(command), tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


@pytest.mark.parametrize("command", [c for c in commands() if any(mark in c for mark in OUTSIDE)])
def test_command_that_needs_a_download_says_so(command: str, tmp_path: Path) -> None:
    """Its settings are right: what stops it is what is missing here, and it says what."""
    done = call(shlex.split(command), tmp_path)
    assert done.returncode == 2
    assert "error:" in done.stderr
    assert not re.search("unknown|given twice|should be", done.stderr), done.stderr


@pytest.mark.parametrize("page", PAGES)
def test_python(page: str, tmp_path: Path) -> None:
    (code,) = blocks(page, "python")
    assert len([line for line in code.splitlines() if line]) <= 5
    done = call([sys.executable, "-W", "error", "-c", code], tmp_path)
    assert done.returncode == 0, done.stderr
    numbers = [float(n) for n in re.findall(r"\d+\.\d+", done.stdout)]
    assert len(numbers) == 2
    assert all(0 <= n <= 100 for n in numbers)


def test_the_test_command_is_what_ci_runs() -> None:
    """.ci/run takes the line after the marker; there must be exactly one."""
    after = (ROOT / "README.md").read_text().split("<!-- tests -->")[1]
    lines = re.findall(r"^pip install.*$", after, re.MULTILINE)
    assert lines == ["pip install -c constraints.txt -e '.[dev]' && pytest -n 2"]
