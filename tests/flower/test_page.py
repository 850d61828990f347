"""docs/deploying.md: every command as written, the servers and sites in the background."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from deployed import until

pytestmark = pytest.mark.flower
PAGE = Path(__file__).parent.parent.parent / "docs" / "deploying.md"
STAYS = {"server", "site"}


def test_the_page(tmp_path: Path) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    running: list[subprocess.Popen[bytes]] = []
    printed = ""
    try:
        for kind, text in re.findall(r"```bash ?(\w*)\n(.*?)```", PAGE.read_text(), re.DOTALL):
            for command in text.strip().splitlines():
                if command.startswith("pip "):
                    continue
                if kind in STAYS:
                    with (tmp_path / f"{len(running)}.log").open("wb") as log:
                        running.append(subprocess.Popen(command.split(), cwd=tmp_path, env=environment, stderr=log))
                    continue
                if "flower run" in command:
                    until(lambda: status(tmp_path, environment).count("online") == 3, told=lambda: logs(tmp_path))
                done = subprocess.run(
                    command, shell=True, cwd=tmp_path, env=environment, capture_output=True, text=True
                )
                assert done.returncode == 0, done.stdout + done.stderr + logs(tmp_path)
                printed += done.stdout
            time.sleep(1 if kind in STAYS else 0)
    finally:
        for process in running:
            process.terminate()
        for process in running:
            process.wait(timeout=60)
    there, here = re.findall(r"global capt +│ +([\d.]+)", printed)
    assert there == here
    assert (tmp_path / "fed/server/runs/capt-1/result.json").is_file()


def status(folder: Path, environment: dict[str, str]) -> str:
    words = ["fedtailor", "flower", "status", "fed"]
    return subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, check=False).stdout


def logs(folder: Path) -> str:
    return "\n".join(path.read_text()[-2000:] for path in sorted(folder.glob("*.log")))
