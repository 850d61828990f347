"""The notebooks are kept without outputs, and run from top to bottom in an empty folder."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
each = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def test_there_are_some() -> None:
    assert [path.stem for path in NOTEBOOKS] == ["adding-a-method", "own-pictures", "quickstart"]


@each
def test_stripped_and_linked(path: Path) -> None:
    cells = json.loads(path.read_text())["cells"]
    assert all(not cell["outputs"] and cell["execution_count"] is None for cell in cells if cell["cell_type"] == "code")
    text = "".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
    for link in re.findall(r"\]\(([^)#]+)", text):
        assert (path.parent / link).is_file(), link
    pages = "".join(page.read_text() for page in (ROOT / "docs").glob("*.md"))
    assert f"../notebooks/{path.name}" in pages


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@each
def test_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a kernel of this Python, whose `fedtailor` is on the path too."""
    pytest.importorskip("ipykernel")
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("MPLBACKEND", "agg")
    notebook = nbformat.read(path, as_version=4)
    client = nbclient.NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(tmp_path)}})
    client.execute()
    printed = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    assert any("%" in output.get("text", "") or "overall" in output.get("text", "") for output in printed)
    assert not [output for output in printed if output.output_type == "error"]
