"""What can be told of the image without building it: it installs what the README says, and copies what is there."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "Dockerfile").read_text()
LINES = [line for line in re.sub(r"\\\n", " ", TEXT).splitlines() if line and not line.startswith("#")]
STEPS = [(line.split()[0], line.split(maxsplit=1)[1]) for line in LINES]


def steps(word: str) -> list[str]:
    return [rest for step, rest in STEPS if step == word]


def test_its_steps() -> None:
    known = {"FROM", "WORKDIR", "COPY", "RUN", "USER", "ENV", "ENTRYPOINT", "CMD"}
    assert {step for step, _ in STEPS} <= known
    assert STEPS[0][0] == "FROM"
    assert all(":" in image and not image.endswith(":latest") for image in steps("FROM"))


def test_it_installs_as_the_readme_says() -> None:
    """The first command of the README, in its two halves."""
    install, run = re.findall(r"```bash\n(pip install .*?) && (fedtailor .*?)\n", (ROOT / "README.md").read_text())[0]
    assert install.replace("pip install", "pip install --no-cache-dir") in steps("RUN")
    assert f"ENTRYPOINT {['fedtailor']!r} CMD {[run.split()[1]]!r}".replace("'", '"') == " ".join(LINES[-2:])


def test_torch_comes_first_and_without_cuda() -> None:
    """Else `-c constraints.txt` alone would take the one with CUDA."""
    (torch, package, _) = steps("RUN")
    assert "-c constraints.txt torch --extra-index-url https://download.pytorch.org/whl/cpu" in torch
    assert package.endswith("-e .")


def test_its_python_is_one_that_is_tested() -> None:
    (image,) = steps("FROM")
    version = re.findall(r"python:(3\.\d+)-slim", image)[0]
    assert f"Programming Language :: Python :: {version}" in (ROOT / "pyproject.toml").read_text()
    assert f"tested on {version}" in (ROOT / "README.md").read_text()


def test_it_copies_what_is_there_and_let_in() -> None:
    let_in = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = {source for rest in steps("COPY") for source in shlex.split(rest)[:-1]}
    assert copied == let_in
    assert all((ROOT / source).exists() for source in copied)


def test_it_does_not_run_as_root() -> None:
    assert steps("USER") == ["tailor"]
    after = [step for step, _ in STEPS[[step for step, _ in STEPS].index("USER") :]]
    assert "RUN" not in after
    assert "COPY" not in after


@pytest.mark.parametrize("template", sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("*.md")), ids=lambda path: path.stem)
def test_issue_templates(template: Path) -> None:
    head, body = template.read_text().removeprefix("---\n").split("\n---\n", 1)
    assert {line.partition(":")[0] for line in head.splitlines()} == {"name", "about", "labels"}
    assert body.count("**") >= 6
