"""What a command loads: no torch where none is needed, and the lists and pages that are kept for that."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from conftest import Call
from fedtailor.cli import catalogue
from fedtailor.core import FIXED, LOCAL

HEAVY = "torch", "torch._dynamo", "sklearn", "scipy", "matplotlib", "flwr", "PIL"
PROBE = f"""
import json, sys
code = None
try:
    from fedtailor.cli import main
    main()
except SystemExit as end:
    code = end.code
sys.stderr.write("\\n" + json.dumps([code or 0, [name for name in {HEAVY} if name in sys.modules]]))
"""


class Seen(NamedTuple):
    code: int
    loaded: set[str]
    out: str
    err: str


Start = Callable[..., Seen]


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Start:
    """`fedtailor …` as a process of its own, with a cache of this file's tests alone."""
    folder, cache = tmp_path_factory.mktemp("here"), tmp_path_factory.mktemp("startup")

    def go(*words: object) -> Seen:
        environment = {**os.environ, "FEDTAILOR_CACHE": str(cache), "COLUMNS": "100"}
        command = [sys.executable, "-c", PROBE, *map(str, words)]
        done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, timeout=120)
        told, _, last = done.stderr.rpartition("\n")
        code, loaded = json.loads(last)
        return Seen(code, set(loaded), done.stdout, told)

    return go


@pytest.fixture(scope="module")
def first(start: Start) -> Seen:
    """The first list of all; from here on, the lists are kept."""
    return start("list", "methods")


def test_the_first_list_and_the_next(start: Start, first: Seen, call: Call) -> None:
    """The first one loads torch and the next does not; they are the same, and the same as without a cache."""
    assert (first.code, first.err) == (0, "")
    assert "torch" in first.loaded
    assert not first.loaded & {"torch._dynamo", "sklearn", "scipy", "matplotlib", "flwr"}
    then = start("list", "methods")
    assert (then.code, then.loaded, then.out) == (0, set(), first.out)
    assert call("list", "methods").out == first.out


@pytest.mark.parametrize("words", [("show", "capt"), ("show", "rucr", "--json"), ("list", "datasets", "--json")])
def test_kept_pages_are_the_same(start: Start, first: Seen, call: Call, words: tuple[str, ...]) -> None:
    """To the letter, as a page and as JSON: CAPT and RUCR have tuples among their defaults, datasets lack numbers."""
    seen = start(*words)
    assert (seen.code, seen.loaded) == (0, set())
    assert seen.out == call(*words).out


def test_a_stranger(start: Start, first: Seen) -> None:
    """A misspelt method is told of without torch."""
    seen = start("show", "promptf")
    assert (seen.code, seen.loaded, seen.out) == (2, set(), "")
    assert "unknown method 'promptf'; did you mean 'promptfl'? (fedtailor list methods)" in seen.err


@pytest.mark.parametrize(
    "words",
    [
        "",
        "run",
        "predict",
        "evaluate",
        "export",
        "compare",
        "reproduce",
        "plot",
        "report",
        "ui",
        "list",
        "show",
        "doctor",
        "data show",
        "data split",
        "flower status",
        "flower run",
        "flower log",
    ],
)
def test_help_loads_nothing(start: Start, words: str) -> None:
    seen = start(*words.split(), "--help")
    assert (seen.code, seen.loaded) == (0, set())
    assert "Usage" in seen.out


def test_recipes_are_listed_without_torch(start: Start) -> None:
    """All tables and figures, as a page and as JSON; and a name that is none of them is told."""
    assert start("reproduce")[:2] == (0, set())
    seen = start("reproduce", "--json")
    assert (seen.code, seen.loaded, len(json.loads(seen.out))) == (0, set(), 30)
    stranger = start("reproduce", "capt/tabel1")
    assert stranger[:2] == (2, set())
    assert "did you mean 'capt/table1'?" in stranger.err


def test_federations_are_looked_after_without_torch(start: Start, tmp_path: Path) -> None:
    """Only a look at who is online needs Flower."""
    pytest.importorskip("flwr")
    folder = tmp_path / "federation"
    assert start("flower", "init", folder, "--clients", 1, "--host", "localhost")[:2] == (0, set())
    assert start("flower", "add", folder)[:2] == (0, set())
    site = tmp_path / "site"
    assert start("flower", "join", "--home", site)[:2] == (0, set())
    assert start("flower", "add", folder, "--key", site / "client.pub", "--name", "north")[:2] == (0, set())
    assert start("flower", "join", "--home", site, "--answer", folder / "clients" / "north.toml")[:2] == (0, set())
    assert start("flower", "remove", folder, "north")[:2] == (0, set())
    assert start("flower", "renew", folder)[:2] == (0, set())
    assert start("flower", "app", tmp_path / "app")[:2] == (0, set())
    stopped = start("flower", "stop", folder)
    assert stopped[:2] == (2, set())
    assert "no run is going on" in stopped.err
    assert start("flower", "status", folder)[:2] == (0, {"flwr"})


def test_looking_at_data(start: Start, pictures: Path) -> None:
    """To check it takes no torch; who holds what is a run's setting, which does, but nothing is drawn."""
    assert start("data", "check", f"folder:{pictures}")[:2] == (0, {"PIL"})
    words = ("clients=3", "data.min_size=2", "data.min_test=1")
    assert start("data", "show", f"folder:{pictures}", *words)[:2] == (0, {"torch", "PIL"})


def test_figures(start: Start, small: dict[str, Any], tmp_path: Path) -> None:
    """The list loads nothing; a figure of what was recorded is drawn without torch and scikit-learn, and a
    page is made without matplotlib too."""
    assert start("plot", "--list")[:2] == (0, set())
    words = [f"{key}={value}" for key, value in {**small, "rounds": 1}.items()]
    assert start("run", "promptfl", *words, "--out", tmp_path / "run").code == 0
    assert start("plot", tmp_path / "run", "--figure", "curves")[:2] == (0, {"matplotlib", "PIL"})
    assert start("report", tmp_path / "run")[:2] == (0, {"PIL"})


def test_doctor(start: Start) -> None:
    """What is installed is looked up, not loaded; code 1 is for a bundled CLIP that does not load."""
    assert start("doctor")[:2] == (0, {"torch", "PIL"})


def test_a_run(start: Start, small: dict[str, Any]) -> None:
    """Neither torch's compiler, which takes as long to load as torch, nor what only some methods or plots need."""
    words = [f"{key}={value}" for key, value in {**small, "rounds": 1}.items()]
    assert start("run", "promptfl", *words)[:2] == (0, {"torch", "PIL"})


def test_a_model_in_use(start: Start, small: dict[str, Any], pictures: Path, tmp_path: Path) -> None:
    """Broken: to look at a picture loads what only training, other methods or plots need."""
    words = [f"{key}={value}" for key, value in {**small, "rounds": 1, "calibrate": 0.2}.items()]
    assert start("run", "promptfl", *words, "--out", tmp_path / "run")[:2] == (0, {"torch", "PIL"})
    for verb in ("predict", "evaluate"):
        assert start(verb, tmp_path / "run", pictures)[:2] == (0, {"torch", "PIL"})


def test_import() -> None:
    """`import fedtailor` is quick, and sees to threads before torch is there."""
    text = "import os, sys, fedtailor; print('torch' in sys.modules, os.environ['OMP_WAIT_POLICY'])"
    environment = {key: value for key, value in os.environ.items() if key != "OMP_WAIT_POLICY"}
    done = subprocess.run([sys.executable, "-c", text], env=environment, capture_output=True, text=True, timeout=60)
    assert done.stdout == "False PASSIVE\n"


# --- what is kept ---------------------------------------------------------------------------------------------------


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was computed, each time that it was."""
    made: list[str] = []
    compute = catalogue.computed
    monkeypatch.setattr(catalogue, "computed", lambda: made.append(compute()) or made[-1])
    return made


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package with one file in it, in place of fedtailor."""
    folder = tmp_path / "package" / "methods"
    folder.mkdir(parents=True)
    (folder / "mine.py").write_text("mu = 1\n")
    monkeypatch.setattr(catalogue, "PACKAGE", folder.parent)
    return folder


def test_facts_are_kept(tmp_path: Path, computed: list[str]) -> None:
    """Computed once; then every value of every list and page is as it was."""
    once, again = catalogue.kept(tmp_path), catalogue.kept(tmp_path)
    assert len(computed) == 1
    assert json.dumps(once) == json.dumps(again) == computed[0]
    assert list(once["lists"]) == list(catalogue.KINDS)


@pytest.mark.parametrize("change", ["edited", "touched", "added", "recipe", "renamed", "removed", "version", "python"])
def test_another_package(
    change: str, package: Path, tmp_path: Path, computed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever changes, facts are computed anew, and those of before are removed, but nobody else's files."""
    folder, file = tmp_path / "lists", package / "mine.py"
    catalogue.kept(folder)
    (before,) = folder.iterdir()
    (folder / "letter.json").write_text("dear")
    (folder / f"{before.name}.part").write_text("{")  # of a process that was killed
    if change == "edited":
        file.write_text("mu = 10\n")
    elif change == "touched":
        os.utime(file, ns=(1, 1))
    elif change in {"added", "recipe"}:
        (package / ("more.py" if change == "added" else "mine.toml")).write_text("")
    elif change == "renamed":
        file.rename(package / "his.py")
    elif change == "removed":
        file.unlink()
    else:
        monkeypatch.setattr(*((catalogue, "__version__") if change == "version" else (sys, "version")), "0.0")
    catalogue.kept(folder)
    assert len(computed) == 2
    names = {path.name for path in folder.iterdir()}
    assert "letter.json" in names
    assert len(names) == 2
    assert before.name not in names


def test_what_is_no_part_of_the_facts(package: Path, tmp_path: Path, computed: list[str]) -> None:
    """Compiled files come and go."""
    catalogue.kept(tmp_path / "lists")
    (package / "mine.pyc").write_bytes(b"x")
    catalogue.kept(tmp_path / "lists")
    assert len(computed) == 1


@pytest.mark.parametrize("damage", [b"", b"{", b"\xff\xfe", b"null", b"[]", b"{}", b'{"lists": {}, "methods": {}}'])
def test_a_damaged_file(damage: bytes, tmp_path: Path, computed: list[str]) -> None:
    """Is as good as none, and is replaced."""
    good = catalogue.kept(tmp_path)
    (path,) = tmp_path.iterdir()
    path.write_bytes(damage)
    assert catalogue.kept(tmp_path) == good
    assert len(computed) == 2
    assert path.read_text() == computed[0]


def test_a_folder_that_cannot_be_written(tmp_path: Path, computed: list[str]) -> None:
    """Facts are computed each time."""
    (tmp_path / "file").write_text("in the way")
    assert catalogue.kept(tmp_path / "file" / "lists") == catalogue.kept(tmp_path / "file")
    assert len(computed) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_what_stays_is_spelled_as_scopes_are() -> None:
    """The page knows the scopes' words without their classes, which need torch."""
    assert {str(LOCAL), str(FIXED)} == catalogue.STAYS
