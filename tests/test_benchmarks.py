"""`python -m benchmarks` works: every part in small, its rows whole, what must be equal equal. No time is judged."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from benchmarks.__main__ import main
from benchmarks.cases import CASES
from benchmarks.flops import gflop
from benchmarks.growth import fit
from benchmarks.registry import PARTS
from benchmarks.rows import Row

from fedtailor.clip.product import times

ROOT = Path(__file__).parent.parent
LONG = ("round", "beside", "start", "compile", "faults")  # in `pytest -m slow`
QUICK = [
    pytest.param(name, marks=[pytest.mark.slow] if name in LONG else [])
    for name, part in PARTS.items()
    if not part.flower
]
FIELDS = set(Row("", "", "").json())


Rows = list[dict[str, Any]]
Found = Callable[[str], Rows]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("benchmarks")


@pytest.fixture(scope="module")
def rows_of(folder: Path) -> Found:
    """The rows of a part in small, measured once."""

    @cache
    def rows(part: str) -> Rows:
        file = folder / f"{part}.json"
        assert main([part, "--quick", "--json", str(file)]) == 0
        document = json.loads(file.read_text())
        assert document["machine"]["cores"] >= 1
        found: Rows = document["rows"]
        return found

    return rows


@pytest.mark.parametrize("part", QUICK)
def test_every_row_is_whole(part: str, rows_of: Found) -> None:
    rows = rows_of(part)
    assert len(rows) > 1
    for row in rows:
        assert set(row) == FIELDS
        assert row["part"] == part
        assert row["case"]
        assert row["variant"]
        figures = [row[name] for name in ("cpu_s", "wall_s", "peak_mb") if row[name] is not None]
        assert figures or row["more"]
        assert all(np.isfinite(value) and value >= 0 for value in figures)


def test_a_step_of_every_method_equals_the_naive_one(rows_of: Found) -> None:
    """Loss and gradient, and with fewer operations; each with its count and its part of the peak."""
    rows = {(row["case"], row["variant"]): row for row in rows_of("step")}
    for case in CASES:
        naive, ours = rows[case, "naive"], rows[case, "ours"]
        assert ours["off"] <= 1e-4
        assert ours["gflop"] < naive["gflop"]
        assert naive["of_peak"] > 0
        assert ours["ratio"] is not None


@pytest.mark.slow
def test_engines_and_threads_reach_the_same_parameters(rows_of: Found) -> None:
    compared = [row for row in rows_of("round") if row["off"] is not None]
    assert {"engine=local threads=2"} <= {row["variant"] for row in compared}
    assert all(row["off"] <= 1e-3 for row in compared)


def test_growth_has_its_points_and_a_picture(rows_of: Found, folder: Path) -> None:
    rows = rows_of("growth")
    fitted = [row["more"] for row in rows if "sizes" in row["more"]]
    assert len(fitted) == 9
    assert all(len(more["sizes"]) == len(more["values"]) > 1 for more in fitted)
    assert any("MB more" in row["more"] for row in rows)
    assert (folder / "growth-growth.png").read_bytes().startswith(b"\x89PNG")


def test_what_is_off_ends_with_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks import step

    monkeypatch.setattr(step, "ALLOWED", 0.0)
    assert main(["step", "--quick", "--cases", "promptfl", "--json", str(tmp_path / "x.json")]) == 1


def test_the_list_and_unknown_parts(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list"]) == 0
    told = capsys.readouterr().out
    assert all(name in told for name in PARTS)
    with pytest.raises(SystemExit):
        main(["stp"])
    assert "no part stp" in capsys.readouterr().err
    for words in (["--cases", "promptlf"], ["--engines", "lokal"]):
        with pytest.raises(SystemExit, match=words[1]):
            main(["step", "--quick", *words])


def test_operations_are_counted_forwards_and_backwards() -> None:
    """A (2, 3) by (3, 4) product is 2·2·3·4 = 48; its two gradients as much again each."""
    a, b = torch.ones(2, 3, requires_grad=True), torch.ones(3, 4, requires_grad=True)
    assert gflop(lambda: a @ b) * 1e9 == pytest.approx(48)
    assert gflop(lambda: torch.autograd.grad((a @ b).sum(), [a, b])) * 1e9 == pytest.approx(144)
    assert gflop(lambda: times(a.detach(), b.detach().T)) * 1e9 == pytest.approx(48)  # by oneDNN, if it is there
    q = torch.ones(1, 2, 5, 8)  # two heads, five tokens: q·k and the weighted sum, 2 · 2·5·5·8 each
    assert gflop(lambda: torch.nn.functional.scaled_dot_product_attention(q, q, q)) * 1e9 == pytest.approx(3200 / 2)


def test_exponents() -> None:
    sizes = [10, 100, 1000]
    assert fit(sizes, [3 * n**1.5 for n in sizes]) == pytest.approx((1.5, 1.5))
    assert fit(sizes, [7.0, 7.0, 7.0]) == pytest.approx((0.0, 0.0), abs=1e-9)


def test_the_page_names_tests_and_parts_that_exist() -> None:
    page = (ROOT / "docs/performance.md").read_text()
    tests = "".join(file.read_text() for file in (ROOT / "tests").rglob("test_*.py"))
    named = re.findall(r"`(test_\w+)`", page)
    assert len(named) > 20
    assert [name for name in named if f"def {name}(" not in tests] == []
    pages = page + "".join((ROOT / "docs" / name).read_text() for name in ("trust.md", "deploying.md"))
    assert set(re.findall(r"^python -m benchmarks (\w+)$", pages, re.MULTILINE)) == set(PARTS)
