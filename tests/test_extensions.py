"""Methods, tuners and labelers from outside the package."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from pydantic import Field

import fedtailor
from conftest import Call
from fedtailor.base.errors import UserError
from fedtailor.cli import catalogue
from fedtailor.core import Bend, Context
from fedtailor.labelers.zeroshot import ZeroShotLabels
from fedtailor.settings.extensions import KINDS, OURS

PAGE = Path(__file__).parent.parent / "docs" / "adding-a-method.md"


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    """What a test registers is gone after it."""
    yield
    for word, (_, known, _) in KINDS.items():
        for name in known.keys() - OURS[word]:
            del known[name]


class Half(fedtailor.Method):
    """Half of the way that the clients went."""

    part: float = Field(0.5, ge=0, le=1, description="of the way")

    def aggregate(self, server: Any, replies: Any) -> Any:
        after = super().aggregate(server, replies)
        params = {n: torch.lerp(v, after.params[n], self.part) for n, v in server.params.items()}
        return type(server)(**{**vars(after), "params": params})


class Words(fedtailor.Tuner):
    """Two rows of context."""

    acts_on: ClassVar[frozenset[str]] = frozenset({"text"})

    def context(self, model: Any) -> Context:
        return Context(shared=2)

    def init(self, model: Any, rng: torch.Generator) -> Any:
        return {"mine.ctx": torch.zeros(2, model.clip.text.width)}

    def bend(self, theta: Any, model: Any) -> Bend:
        return Bend(shared=theta["mine.ctx"])


class Again(ZeroShotLabels):
    """As zero-shot, under another name."""


def test_a_class_is_run(small: dict[str, Any], tmp_path: Path) -> None:
    """Broken: `fedtailor.run(MyMethod)` does not run it, or not with its server's step."""
    half = fedtailor.run(Half, small, out=tmp_path / "half")
    whole = fedtailor.run(Half, {**small, "method.part": 1.0})
    plain = fedtailor.run("fedavg", small)
    assert (half.summary["method"], half.run.method.value.part) == ("half", 0.5)
    assert whole.summary["global"] == plain.summary["global"]
    assert half.rounds[-1]["global"]["per_class"] is not None
    assert fedtailor.resume(tmp_path / "half").summary == half.summary
    assert fedtailor.make_run(fedtailor.Method, small).method.name not in {"half", ""}


def test_all_kinds(small: dict[str, Any]) -> None:
    """Broken: a tuner or labeler that is registered is no key's value, or lists do not know it."""
    fedtailor.register(Half, "halved", tuner="words", tuners=["words"], settings={"local": {"lr": 0.02}})
    fedtailor.register(Words)
    fedtailor.register(Again)
    rest = {key: value for key, value in small.items() if key != "lr"}
    made = fedtailor.run("halved", {**rest, "labels": "again", "rounds": 1})
    assert (made.run.tuner.name, made.run.labels.name, made.run.local.lr) == ("words", "again", 0.02)
    with pytest.raises(UserError, match="halved is a fixed combination with tuner words"):
        fedtailor.make_run("halved", {**small, "tuner": "lora"})
    assert fedtailor.make_run("fedavg", {**small, "tuner": "words+lora"}).tuner.name == "words+lora"


def test_lists_and_pages(call: Call) -> None:
    """Broken: what is registered is not listed, or its page cannot be shown."""
    for what, name, kind in (("methods", "half", Half), ("tuners", "words", Words), ("labelers", "again", Again)):
        fedtailor.register(kind)
        rows = {row["name"]: row for row in json.loads(call("list", what, "--json").out)}
        assert rows[name]["idea"] == kind.__doc__
        assert name in call("list", what).out
    page = call("show", "half")
    assert page.code == 0
    assert "Half of the way that the clients went." in page.out
    assert "method.part" in page.out


def test_compared(small: dict[str, Any], tmp_path: Path) -> None:
    """Broken: a class is no row of a comparison."""
    settings = {**small, "rounds": 1}
    made = fedtailor.compare([Half, (Half, {"method.part": 1.0}), "promptfl"], settings, out=tmp_path / "it")
    assert [row["title"] for row in made.summary["rows"]] == ["zeroshot", "half", "half method.part=1.0", "promptfl"]


@pytest.mark.parametrize(
    ("kind", "name", "more", "told"),
    [
        (Half, "fedavg", {}, "there is a method 'fedavg' already; register Half under another name"),
        (Words, "lora", {}, "there is a tuner 'lora' already"),
        (Half, "my method", {}, "'my method' is no name for a method"),
        (Half, "a=b", {}, "is no name for a method"),
        (Words, "", {"tuner": "lora"}, "tuner, tuners and settings are of methods, and Words is a tuner"),
        (int, "", {}, "is no class of a method, tuner or labeler"),
        ("half", "", {}, "is no class of a method, tuner or labeler"),
        (fedtailor.Labeler, "", {}, "Labeler lacks label"),
    ],
)
def test_what_cannot_be_registered(kind: Any, name: str, more: dict[str, Any], told: str) -> None:
    """Broken: one of ours is replaced, or a name cannot be typed, or what is no such class fails later."""
    with pytest.raises(UserError, match=re.escape(told)):
        fedtailor.register(kind, name, **more)


def test_a_cell_that_is_run_twice(small: dict[str, Any]) -> None:
    """Broken: a class that is changed and defined again, as in a notebook, is the old one still."""
    fedtailor.register(Half)
    again = fedtailor.register(type("Half", (Half,), {"__module__": __name__}))
    assert type(fedtailor.make_run("half", small).method.value) is again


def test_resumed_without_it(small: dict[str, Any], tmp_path: Path, call: Call) -> None:
    """Broken: a run of a class that is not known here ends in a riddle, in Python or on the command line."""
    fedtailor.register(Half)
    fedtailor.register(Words)
    fedtailor.run("half", {**small, "tuner": "words", "rounds": 1}, out=tmp_path / "mine")
    for word in ("tuner", "method"):
        known = KINDS[word][1]
        gone = {name: known.pop(name) for name in list(known) if name in {"half", "words"}}
        name, kind = ("words", "Words") if word == "tuner" else ("half", "Half")
        told = (
            f"is of the {word} '{name}', which is test_extensions.{kind} and no part of fedtailor: import that, call "
        )
        with pytest.raises(UserError, match=re.escape(f"{told}fedtailor.register({kind}, '{name}')")):
            fedtailor.resume(tmp_path / "mine")
        answer = call("run", "--resume", str(tmp_path / "mine"))
        assert (answer.code, answer.out) == (2, "")
        assert told in answer.err
        known |= gone
    assert fedtailor.resume(tmp_path / "mine").summary["rounds"] == 1


# --- entry points ---------------------------------------------------------------------------------------------------

PACKAGE = """
import fedtailor, torch
from fedtailor.methods.recipe import Entry
from fedtailor.labelers.zeroshot import ZeroShotLabels

class Far(fedtailor.Method):
    '''From afar.'''

class Names(ZeroShotLabels):
    '''Labels from afar.'''

entry = Entry(Far, "lora", "with an entry", settings={"rounds": 7})
"""
POINTS = """
[fedtailor.methods]
far = faraway:Far
far-lora = faraway:entry
broken = faraway:nothing
fedavg = faraway:Far

[fedtailor.labelers]
afar = faraway:Names
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package that names some in its entry points."""
    site = tmp_path / "site"
    (site / "faraway-1.0.dist-info").mkdir(parents=True)
    (site / "faraway.py").write_text(PACKAGE)
    (site / "faraway-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: faraway\nVersion: 1.0\n")
    (site / "faraway-1.0.dist-info" / "entry_points.txt").write_text(POINTS)
    monkeypatch.syspath_prepend(site)
    monkeypatch.delitem(sys.modules, "faraway", raising=False)
    return site


def test_entry_points(installed: Path, small: dict[str, Any]) -> None:
    """Broken: an installed package's method is not found by its name, replaces one of ours, or is imported in vain."""
    assert fedtailor.make_run("promptfl", small).method.name == "promptfl"
    assert "faraway" not in sys.modules
    made = fedtailor.run("far", {**small, "labels": "afar", "rounds": 1})
    assert (made.summary["method"], made.summary["labels"]) == ("far", "afar")
    assert fedtailor.make_run("far-lora").document()["rounds"] == 7
    assert fedtailor.make_run("fedavg").method.value.__class__.__module__ == "fedtailor.methods.fedavg"
    with pytest.raises(UserError, match="the method 'broken' of faraway cannot be loaded: AttributeError"):
        fedtailor.make_run("broken")


def test_an_entry_point_in_the_wrong_group(installed: Path) -> None:
    """Broken: a labeler passes for a method."""
    points = installed / "faraway-1.0.dist-info" / "entry_points.txt"
    points.write_text("[fedtailor.methods]\nafar = faraway:Names\n")
    with pytest.raises(UserError, match="the method 'afar' of faraway is a labeler"):
        fedtailor.make_run("afar")


def test_entry_points_on_the_command_line(installed: Path, tmp_path: Path) -> None:
    """Broken: `fedtailor list` does not show them, or needs torch for what it has kept."""
    main = "from fedtailor.cli import main\ntry:\n    main()\n"
    probe = f"import sys\n{main}finally:\n    sys.stderr.write(str('torch' in sys.modules))"
    path = os.pathsep.join([str(installed), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": path, "FEDTAILOR_CACHE": str(tmp_path / "cache")}

    def names() -> tuple[set[str], str]:
        command = [sys.executable, "-W", "ignore", "-c", probe, "list", "methods", "--json"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=True)
        return {row["name"] for row in json.loads(done.stdout)}, done.stderr

    first, again = names(), names()
    assert {"far", "far-lora", "capt"} <= first[0]
    assert "broken" not in first[0]
    assert (first[1], again) == ("True", (first[0], "False"))


def test_lists_that_are_kept_know_other_packages(installed: Path) -> None:
    """Broken: `fedtailor list` tells what a package had before it was changed, or was not installed yet."""
    points, seen = installed / "faraway-1.0.dist-info" / "entry_points.txt", {catalogue.state_of_package()}
    points.write_text("[fedtailor.methods]\nnearer = faraway:Far\n")
    seen.add(catalogue.state_of_package())
    (installed / "faraway.py").write_text("Far = 1\n")
    seen.add(catalogue.state_of_package())
    points.unlink()
    assert len(seen | {catalogue.state_of_package()}) == 4


def test_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Broken: the example of the page does not run as it stands, or its server's step does nothing."""
    monkeypatch.chdir(tmp_path)
    code = re.findall(r"```python\n(.*?)```", PAGE.read_text().partition("## 6.")[2], re.DOTALL)
    assert len(code) == 2
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(code[0], "trim.py", "exec"), names)
    trimmed = names["result"]
    assert float(capsys.readouterr().out) == trimmed.summary["global"]["overall"]
    again = fedtailor.resume("runs/trim")
    assert again.summary == trimmed.summary
    replies = {k: fedtailor.Reply({"a": torch.tensor([float(v)])}) for k, v in enumerate([9, 1, 2, 3])}
    server = names["FedTrim"](beta=0.25).aggregate(fedtailor.Server(0, {"a": torch.zeros(1)}), replies)
    assert server.params["a"].item() == 2.5  # of 1, 2, 3, 9 without the ends
    exec(compile(code[1], "trim.py", "exec"), names)
    assert (names["result"].summary["method"], names["result"].summary["tuner"]) == ("trimmed", "adapter")
