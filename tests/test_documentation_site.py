"""The site: every page has its place, and links lead to the same things there as here. `.ci/run` builds it."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import api_page
import build_site
import fedtailor

ROOT = Path(__file__).parent.parent


def leaves(nav: Any) -> Iterator[str]:
    if isinstance(nav, str):
        yield nav
    else:
        for part in nav.values() if isinstance(nav, dict) else nav:
            yield from leaves(part)


def test_every_page_is_in_the_navigation() -> None:
    nav = list(leaves(tomllib.loads((ROOT / "zensical.toml").read_text())["project"]["nav"]))
    pages = [place for place in build_site.places().values() if place.endswith(".md")]
    assert sorted(nav) == sorted([*pages, "api.md"])


@pytest.mark.parametrize(
    ("source", "text", "there"),
    [
        ("README.md", "[runs](docs/runs.md#more-rounds)", "[runs](runs.md#more-rounds)"),
        ("README.md", "[`capt`](docs/methods/capt.md)", "[`capt`](methods/capt.md)"),
        ("README.md", "[decisions](docs/decisions)", "[decisions](decisions/README.md)"),
        ("docs/methods/capt.md", "[data](../data.md)", "[data](../data.md)"),
        ("docs/results.md", "[lab](../lab/README.md)", "[lab](lab/README.md)"),
        ("docs/faq.md", "[it](../notebooks/quickstart.ipynb)", "[it](notebooks/quickstart.ipynb)"),
        ("docs/deploying.md", "[one function](../src/fedtailor/client/step.py)", "one function"),
        ("docs/faq.md", "[nowhere](nowhere.md)", "[nowhere](nowhere.md)"),
        ("docs/runs.md", "![a run](run.svg)", "![a run](run.svg)"),
        ("docs/runs.md", "[above](#numbers) [x](https://a.b/c.md)", "[above](#numbers) [x](https://a.b/c.md)"),
        ("README.md", "```text\n[a](docs/runs.md)\n```", "```text\n[a](docs/runs.md)\n```"),
        ("README.md", "`[a](docs/runs.md)`", "`[a](docs/runs.md)`"),
    ],
)
def test_links(source: str, text: str, there: str) -> None:
    assert build_site.relinked(text, source, build_site.places()) == there


def test_the_decisions_are_listed() -> None:
    folder = ROOT / "docs/decisions"
    text = (folder / "README.md").read_text()
    for page in sorted(folder.glob("0*.md")):
        number, title = page.read_text().splitlines()[0].removeprefix("# ").split(". ", 1)
        assert f"| {number} | [{title}]({page.name}) |" in text


def test_the_reference_has_every_public_name() -> None:
    assert sorted(name for names in api_page.GROUPS.values() for name in names) == sorted(fedtailor.__all__)
    page = api_page.api_page()
    assert "load(\n    path: str | PathLike[str],\n    *,\n    backbone: str = '',\n" in page
    assert 'run("fedprox", {"data.alpha": 0.5' in page
    assert " object at 0x" not in page
    for method in ("on_round(record: RoundRecord", "aggregate(server: Server", "predict(pictures"):
        assert f"`{method}" in page


def test_nothing_is_fetched(tmp_path: Path) -> None:
    """The check sees what a browser would ask others for, and lets links be."""
    (tmp_path / "good.html").write_text('<a href="https://a.b"><script src="assets/x.js"></script><img src="run.svg">')
    assert build_site.fetched(tmp_path) == []
    for bad in (
        '<script src="https://a.b/x.js">',
        "<link rel=stylesheet href=//a.b/x.css>",
        '<img src="http://a.b/c">',
    ):
        (tmp_path / "bad.html").write_text(bad)
        assert len(build_site.fetched(tmp_path)) == 1, bad
    (tmp_path / "bad.html").unlink()
    (tmp_path / "bad.css").write_text("@font-face { src: url(https://a.b/font.woff2) }")
    assert len(build_site.fetched(tmp_path)) == 1
