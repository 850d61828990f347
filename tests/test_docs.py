"""The method that docs/adding-a-method.md builds works as written, and pages link to pages that exist."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedtailor.core import LOCAL, Method
from fedtailor.visit import Job
from world import world

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def test_the_method_of_the_tutorial() -> None:
    """Its file runs; words are averaged, image tokens stay with their client, and both are learned."""
    page = (ROOT / "docs/adding-a-method.md").read_text()
    code = re.findall(r"```python\n(.*?)```", page, re.DOTALL)[0]
    names: dict[str, Any] = {"__name__": "fedtailor.methods.fedkeep", "__package__": "fedtailor.methods"}
    exec(compile(code, "fedkeep.py", "exec"), names)
    made: type[Method] = names["FedKeep"]
    setup = world(tuner="text_prompt+visual_prompt")
    job = Job(made(local=setup.run.local), setup.job.model, seed=3)
    assert job.scopes["visual.ctx"] == LOCAL
    setup = replace(setup, job=job)
    engine = setup.engine()
    cohort = job.method.cohort(0, 4, 0.5, None)  # type: ignore[arg-type]  # everyone: nothing is drawn
    assert cohort == [0, 1, 2, 3]
    server = job.method.round(job.first_server(), cohort, engine)
    assert server.params.keys() == {"text.ctx"}
    assert (server.params["text.ctx"] != job.start["text.ctx"]).any()
    assert all((engine.clients[k].local["visual.ctx"] != job.start["visual.ctx"]).any() for k in cohort)


def test_the_page_on_the_bundled_model() -> None:
    """Its lines of Python give the dataset that it describes."""
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs/bundled.md").read_text(), re.DOTALL)
    names: dict[str, Any] = {}
    exec(code, names)
    assert (len(names["data"].classes), len(names["data"].train), len(names["data"].test)) == (40, 12000, 2000)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links(page: Path) -> None:
    for link in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        assert (page.parent / link).exists(), link
