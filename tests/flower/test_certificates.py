"""Certificates near their end are told of, with what to do."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path

import pytest

from fedtailor.base.terminal import Terminal
from fedtailor.flower import pki
from fedtailor.flower.certificates import ending, ends_of
from fedtailor.flower.deployment import Deployment
from fedtailor.flower.init import init, renew
from fedtailor.flower.status import collect, render

HOSTS = ["fed.example.org"]


def test_far_from_their_end(tmp_path: Path) -> None:
    init(tmp_path / "fed", 1, HOSTS)
    found = collect(Deployment(tmp_path / "fed"))
    assert found["warnings"] == []
    assert found["certificates"] == {
        kind: str(end.date()) for kind, end in ends_of(tmp_path / "fed" / "server").items()
    }


@pytest.mark.parametrize(
    ("life", "told"),
    [(timedelta(days=29, hours=1), "ends on .*, in 29 days; make a new one"), (timedelta(-1), "ended on")],
)
def test_near_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], life: timedelta, told: str
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(pki, "SERVER_LIFE", life)
        patch.setattr(pki, "SLACK", timedelta(days=2))
        init(tmp_path / "fed", 1, HOSTS)
    found = collect(Deployment(tmp_path / "fed"))
    (sentence,) = found["warnings"]
    assert sentence.startswith("the server's certificate")
    assert re.search(told, sentence)
    Terminal(width=200).print(render(found))
    assert sentence in capsys.readouterr().out
    renew(tmp_path / "fed")
    assert ending(tmp_path / "fed" / "server") == []


def test_the_ca_ends_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pki, "CA_LIFE", timedelta(days=10))
    init(tmp_path / "fed", 1, HOSTS)
    assert [told.split(" ends")[0] for told in ending(tmp_path / "fed" / "server")] == [
        "the server's certificate", "the CA's certificate",
    ]  # fmt: skip
