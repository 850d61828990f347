"""A comparison in several formats."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import fedtailor
from conftest import Call
from fedtailor.report.comparison import comparison_table
from fedtailor.report.comparison_formats import as_csv, escape, latex, markdown
from fedtailor.runs.comparison import Comparison

ROWS = ["promptfl", "promptfl:tuner.length=2,lr=0.2,engine=posted", "local"]


@pytest.fixture(scope="module")
def made(small: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    return fedtailor.compare(ROWS, {**small, "rounds": 1}, out=tmp_path_factory.mktemp("formats") / "it")


def test_files(made: Comparison) -> None:
    assert made.folder is not None
    for ending, write in (("md", markdown), ("csv", as_csv), ("tex", latex)):
        assert (made.folder / f"table.{ending}").read_text() == write(made.summary)


@pytest.mark.parametrize(
    ("form", "begins"), [("markdown", "# folder:/"), ("csv", "row,part"), ("latex", "% fedtailor"), ("json", "{")]
)
def test_printed(form: str, begins: str, made: Comparison, call: Call) -> None:
    """One format on stdout, and nothing else."""
    answer = call("compare", "--resume", str(made.folder), "--format", form)
    assert (answer.code, answer.err) == (0, "")
    assert answer.out.startswith(begins)
    assert (json.loads(answer.out) == made.summary) if form == "json" else made.folder


def test_csv(made: Comparison) -> None:
    """A line a number: as many as table.json has, with the same values."""
    lines = list(csv.DictReader(io.StringIO(as_csv(made.summary))))
    assert len(lines) == 4 * (2 * 6 + 4)
    for row in made.summary["rows"]:
        for part in ("global", "personal"):
            for metric, spread in row[part].items():
                (line,) = (it for it in lines if (it["row"], it["part"], it["metric"]) == (row["title"], part, metric))
                assert line["mean"] == ("" if spread["mean"] is None else str(spread["mean"]))
    costs = [it for it in lines if it["metric"] == "bytes_up"]
    assert [it["row"] for it in costs] == [row["title"] for row in made.summary["rows"]]


def test_latex(made: Comparison) -> None:
    """Booktabs; every line has as many cells as columns; nothing that LaTeX would read as a command."""
    text = latex(made.summary)
    tables = text.split(r"\begin{table}")[1:]
    assert len(tables) == 5  # two sections, costs, and the differences in both
    for table in tables:
        (columns,) = re.findall(r"\\begin\{tabular\}\{l(r+)\}", table)
        rows = [line for line in table.splitlines() if line.endswith(r"\\")]
        assert {len(re.findall("(?:^| )& ", row)) for row in rows} == {len(columns)}
        assert all(f"\\{rule}rule" in table for rule in ("top", "mid", "bottom"))
    assert r"promptfl tuner.length=2 lr=0.2 engine=posted & " in text
    assert r"\textbf{" in text
    assert r"\underline{" in text
    assert "–" not in "".join(line for line in text.splitlines() if not line.startswith("%"))


def test_escape() -> None:
    assert escape(r"a_b & 5% \x {y} ~^ #$") == (
        r"a\_b \& 5\% \textbackslash{}x \{y\} \textasciitilde{}\textasciicircum{} \#\$"
    )


def test_eighty_columns(made: Comparison) -> None:
    """Broken: with differences shown, or long titles, a number is cut off."""
    console = Console(width=80)
    with console.capture() as capture:
        console.print(comparison_table(made.summary, differences=True))
    assert max(map(len, capture.get().splitlines())) <= 80
    assert "…" not in capture.get()
    assert "An asterisk" in capture.get()


def test_paths_are_those_that_were_given(small: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Broken: a table names another path than its user did, or tells what was not given of where things lie."""
    backbone = Path(small["backbone"])
    monkeypatch.chdir(backbone.parent)
    settings = {**small, "rounds": 1, "backbone": backbone.name, "data": f"folder:{Path('pictures0') / 'dots'}"}
    summary = fedtailor.compare(["promptfl"], settings).summary
    assert f"data=folder:pictures0/dots backbone={backbone.name} " in summary["command"]
    assert (summary["same"]["data"], summary["same"]["backbone"]) == ("folder:pictures0/dots", backbone.name)
    for write in (markdown, latex, as_csv):
        assert str(backbone.parent) not in write(summary)
