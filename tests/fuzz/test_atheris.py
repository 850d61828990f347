"""A minute of atheris, where it is installed."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from targets import TARGETS

FUZZ = Path(__file__).with_name("fuzz.py")


@pytest.mark.slow
@pytest.mark.skipif(find_spec("atheris") is None, reason="pip install atheris")
@pytest.mark.parametrize("target", TARGETS)
def test_nothing_breaks_a_target(target: str, tmp_path: Path) -> None:
    words = [sys.executable, str(FUZZ), target, "-runs=3000", "-max_total_time=60"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-4000:]
