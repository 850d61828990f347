"""A look at an installation."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from rich.console import Console

from fedtailor.base.errors import UserError
from fedtailor.cli import installation
from fedtailor.cli.installation import Finding


def by_name(findings: list[Finding]) -> dict[str, Finding]:
    return {finding.what: finding for finding in findings}


def test_an_examination(monkeypatch: pytest.MonkeyPatch) -> None:
    """Versions, device, folders and datasets; a dataset that is not there is a note with its way out, not a fault."""
    monkeypatch.setattr(installation, "load", lambda _: SimpleNamespace(digest="0123456789abcdef"))
    found = by_name(installation.examine())
    assert {"fedtailor", "device", "threads", "bundled CLIP", "feature cache", "data folder", "data drawn"} <= set(
        found
    )
    assert found["bundled CLIP"] == Finding("bundled CLIP", "loads, weights 0123456789ab")
    assert found["data cifar10"].verdict == "note"
    assert "download" in found["data cifar10"].found
    assert found["data drawn"].verdict == "good"
    assert "data cifar10-lt" not in found  # the same files
    assert not any(finding.verdict == "bad" for finding in found.values())


def test_a_bundled_clip_that_does_not_load(monkeypatch: pytest.MonkeyPatch) -> None:
    """That is a fault."""

    def fail(_: str) -> Any:
        raise UserError("no model.safetensors in bundled")

    monkeypatch.setattr(installation, "load", fail)
    found = by_name(installation.examine())["bundled CLIP"]
    assert found == Finding("bundled CLIP", "no model.safetensors in bundled", "bad")


def test_extras(monkeypatch: pytest.MonkeyPatch) -> None:
    """Installed ones with their version; others with what to install."""

    def version(module: str) -> str:
        if module == "flwr":
            raise PackageNotFoundError(module)
        return "1.2.3"

    monkeypatch.setattr(installation, "version", version)
    found = by_name(installation.examine())
    assert found["extra hub"] == Finding("extra hub", "huggingface_hub 1.2.3")
    assert found["extra flower"].verdict == "note"
    assert "pip install 'fedtailor[flower]'" in found["extra flower"].found


@pytest.mark.parametrize("policy", ["PASSIVE", "passive"])
def test_threads_that_sleep(monkeypatch: pytest.MonkeyPatch, policy: str) -> None:
    """How many on how many cores, as fedtailor itself sets them up."""
    monkeypatch.setenv("OMP_WAIT_POLICY", policy)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.delenv("MKL_NUM_THREADS", raising=False)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(6)), raising=False)
    expected = f"{torch.get_num_threads()} on 6 cores; they sleep while they wait (OMP_WAIT_POLICY=PASSIVE)"
    assert installation.threads() == Finding("threads", expected)


def test_threads_that_spin(monkeypatch: pytest.MonkeyPatch) -> None:
    """A note of what that costs and what to do, and of the variables that say how many there are."""
    monkeypatch.setenv("OMP_WAIT_POLICY", "ACTIVE")
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.setenv("MKL_NUM_THREADS", "4")
    found = installation.threads()
    assert found.verdict == "note"
    assert "(OMP_NUM_THREADS=3, MKL_NUM_THREADS=4); OMP_WAIT_POLICY=ACTIVE: they spin while they wait" in found.found
    assert "many times the CPU; unset it, or set it to PASSIVE" in found.found


def test_the_cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """How many files and how much; one that is not there yet is a note."""
    (tmp_path / "x").write_bytes(b"0" * 1500)
    (tmp_path / "y").write_bytes(b"0" * 500)
    monkeypatch.setenv("FEDTAILOR_CACHE", str(tmp_path))
    assert "2 files, 2.0 kB; at most" in installation.cache().found
    monkeypatch.setenv("FEDTAILOR_CACHE", str(tmp_path / "z"))
    assert installation.cache().verdict == "note"


def test_the_table_prints_text_as_it_is() -> None:
    """Brackets are no markup, and each verdict has its sign."""
    out = StringIO()
    findings = [Finding("a", "pip install 'fedtailor[hub]'"), Finding("b", "x", "note"), Finding("c", "y", "bad")]
    Console(file=out, width=80).print(installation.table(findings))
    assert "fedtailor[hub]" in out.getvalue()
    assert [sign in out.getvalue() for sign in "✓·✗"] == [True] * 3
