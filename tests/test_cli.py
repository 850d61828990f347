"""The command line: what is printed where, exit codes, and that mistakes leave nothing behind."""

from __future__ import annotations

import errno
import itertools
import json
import os
import subprocess
import sys
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import fedtailor
from conftest import Call
from fedtailor.__main__ import main as loaded
from fedtailor.cli import app, catalogue, installation
from fedtailor.cli.installation import Finding
from fedtailor.evaluation.metrics import METRICS
from fedtailor.methods import METHODS
from fedtailor.runs.folder import RunFolder
from fedtailor.runs.places import new_folder
from run_content import read

KEYS = {
    "method", "tuner", "data", "seed", "rounds", "zero_shot", "global", "personal", "bytes_up", "bytes_down", "seconds",
    "peak_rss_mb", "run_dir",
}  # fmt: skip


@pytest.fixture(scope="session")
def words(small: dict[str, Any]) -> list[str]:
    return [f"{key}={value}" for key, value in small.items()]


def test_run_json(call: Call, words: list[str], tmp_path: Path) -> None:
    """Exactly one JSON object on stdout, with everything a script needs; nothing on stderr; the folder it names."""
    answer = call("run", "promptfl", *words, "--json", "--seed", "4")
    assert (answer.code, answer.err) == (0, "")
    summary = json.loads(answer.out)
    assert set(summary) >= KEYS
    assert all(set(summary[part]) == set(METRICS) for part in ("zero_shot", "global", "personal"))
    assert (summary["method"], summary["tuner"], summary["seed"], summary["rounds"]) == (
        "promptfl",
        "text_prompt",
        4,
        3,
    )
    assert summary["run_dir"] == "runs/promptfl-folder-dots-s4"
    assert read(tmp_path / summary["run_dir"] / "result.json") == summary


def test_run_and_its_toml_and_resume(call: Call, words: list[str], tmp_path: Path) -> None:
    """A table of zero-shot against tuned; the run.toml runs again to the same; the folder resumes to the same."""
    first = call("run", *words, "method=promptfl")
    assert first.code == 0
    assert all(word in first.out for word in ("global zero-shot", "personal promptfl", "macro-F1", "3 rounds in"))
    folder = "runs/promptfl-folder-dots-s0"
    assert folder in first.out
    again = call("run", f"{folder}/run.toml", "--json")
    assert again.code == 0
    summary = json.loads(again.out)
    assert summary["run_dir"] == f"{folder}-2"
    written = read(tmp_path / folder / "result.json")
    different = {key for key in summary if summary[key] != written[key]}
    assert different <= {"seconds", "peak_rss_mb", "run_dir"}
    resumed = call("run", "--resume", folder, "--json")
    assert json.loads(resumed.out) == written  # what the run took, not what it took to tell


def test_run_toml_with_other_settings(call: Call, words: list[str], tmp_path: Path) -> None:
    """Settings after a run.toml win over it."""
    call("run", "promptfl", *words, "--out", "a", "--json")
    summary = json.loads(call("run", "a/run.toml", "rounds=1", "--out", "b", "--json").out)
    assert (summary["rounds"], summary["run_dir"]) == (1, "b")


@pytest.mark.parametrize(
    "extra", [["rounds=3", "lr=0.1"], ["lr=0.1"], ["promptfl"], ["--seed", "3"], ["--out", "there"]]
)
def test_resume_takes_no_settings(call: Call, extra: list[str]) -> None:
    """A resumed run is the run it was."""
    answer = call("run", "--resume", "runs/x", *extra)
    assert (answer.code, answer.out) == (2, "")
    assert "--resume takes all settings from the run's folder but rounds=N; give no others" in answer.err


@pytest.mark.parametrize(
    ("mistake", "told"),
    [
        (["fedprx"], "error: unknown method 'fedprx'; did you mean 'fedprox'? (fedtailor list methods)"),
        (["promptfl", "rouns=3"], "error: unknown key 'rouns'; did you mean 'rounds'?"),
        (["promptfl", "rounds"], "error: 'rounds' is not key=value"),
        (["promptfl", "lr=nan"], "error: local.lr: input should be a finite number"),
        (["promptfl", "seed=1", "--seed", "2"], "error: seed is given twice, as seed= and as --seed"),
        (["promptfl", "backbone=nowhere"], "error: backbone 'nowhere'"),
        (["promptfl", "data=folder:nowhere"], "nowhere is not a folder"),
        (["no.toml"], "error: no.toml is not a readable run.toml"),
        (["promptfl", "data.template=[bold]"], "got '[bold]'"),
        (
            ["promptfl", "--rounds", "5"],
            "unknown option '--rounds'; settings are written without dashes: rounds=5 (",
        ),
        (["promptfl", "--fraction=0.5"], "settings are written without dashes: fraction=0.5 ("),
        (["--clients", "3", "promptfl"], "settings are written without dashes: clients=3 ("),
        (["promptfl", "--epochs", "--json"], "settings are written without dashes: epochs=… ("),
        (["promptfl", "--jsn"], "unknown option '--jsn'; did you mean '--json'? (fedtailor run --help)"),
        (["promptfl", "rounds=0"], "error: rounds: input should be greater than or equal to 1, got 0"),
        (["promptfl", "tuner.length=80"], "this text tower holds 77; make the tuner's length 14 smaller"),
        (["promptfl", "tuner.length=100000"], "99934 smaller, or shorten the class names"),
        (["capt", "tuner.coupled.length=40", "tuner.class_prompt.length=40"], "80 of them learned context"),
        (["promptfl", f"data.template={'a ' * 80}{{}}"], "shorten the class name, or the sentence around it"),
    ],
)
def test_mistakes(call: Call, words: list[str], tmp_path: Path, mistake: list[str], told: str) -> None:
    """Exit code 2, the message alone on stderr, nothing on stdout even with --json, and no folder made."""
    given = {word.partition("=")[0] for word in mistake}
    rest = [] if mistake[0].endswith(".toml") else [w for w in words if w.partition("=")[0] not in given]
    answer = call("run", *mistake, *rest, "--json")
    assert (answer.code, answer.out) == (2, "")
    assert told in answer.err
    assert "Traceback" not in answer.err
    assert list(tmp_path.iterdir()) == []


def test_a_context_that_just_fits(call: Call, words: list[str]) -> None:
    """Broken: the longest context that the text tower holds is refused, or ends in a traceback."""
    rest = [word for word in words if not word.startswith("rounds=")]
    assert call("run", "promptfl", "tuner.length=66", "rounds=1", *rest, "--json").code == 0
    assert call("run", "promptfl", "tuner.length=67", "rounds=1", *rest, "--json").code == 2


def test_as_a_module() -> None:
    """Broken: `python -m fedtailor` does not work where the script is not on the path."""
    done = subprocess.run([sys.executable, "-m", "fedtailor", "--version"], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, f"fedtailor {fedtailor.__version__}\n")


def test_completion(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    """Broken: a shell that has completion installed offers no verbs, or the option to install it is not there."""
    assert "--install-completion" in call("--help").out
    for name, value in {
        "_FEDTAILOR_COMPLETE": "complete_bash",
        "COMP_WORDS": "fedtailor re",
        "COMP_CWORD": "1",
    }.items():
        monkeypatch.setenv(name, value)
    assert call().out.split() == ["reproduce", "report"]


def test_the_citation_is_of_this_version() -> None:
    """Broken: CITATION.cff names another version than the package."""
    text = (Path(__file__).parent.parent / "CITATION.cff").read_text()
    assert f"version: {fedtailor.__version__}\n" in text


def test_a_taken_folder(call: Call, words: list[str], tmp_path: Path) -> None:
    """--out never overwrites."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("dear")
    answer = call("run", "promptfl", *words, "--out", "mine")
    assert (answer.code, answer.out) == (2, "")
    assert "mine is not empty; choose another --out" in answer.err
    assert [p.name for p in (tmp_path / "mine").iterdir()] == ["letter.txt"]


def test_interrupted(call: Call, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C in a round says how to go on, and that works; before any round it does not promise what isn't there."""
    from fedtailor.cli.progress import Progress

    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Progress, "on_round", stop)
        answer = call("run", "promptfl", *words, "--out", "mine")
        spaced = call("run", "promptfl", *words, "--out", "my runs/1")
    assert answer.code == 130
    assert "stopped; go on with: fedtailor run --resume mine" in answer.err
    assert "go on with: fedtailor run --resume 'my runs/1'" in spaced.err
    assert call("run", "--resume", "mine", "--json").code == 0
    with monkeypatch.context() as patch:
        patch.setattr("fedtailor.runs.execute.build", stop)
        answer = call("run", "promptfl", *words, "--out", "other")
    assert answer.code == 130
    assert "--resume" not in answer.err
    assert not (tmp_path / "other").exists()


def test_interrupted_while_it_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Broken: Ctrl-C in the first moment ends in a traceback."""

    def stop() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("fedtailor.cli.main", stop)
    with pytest.raises(SystemExit) as end:
        loaded()
    assert end.value.code == 130


def test_interrupted_anywhere(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    """Broken: a script cannot tell Ctrl-C from a mistake, in verbs that have nothing to go on with either."""

    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(catalogue, "rows", stop)
    monkeypatch.setattr("fedtailor.runs.reproduction.foresee", lambda *_, **__: stop())
    assert call("list").code == 130
    answer = call("reproduce", "capt/table4", "--scale", "smoke", "--dry-run")
    assert (answer.code, answer.err) == (130, "error: stopped; the same command goes on\n")


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EIO, errno.EACCES])
def test_a_full_disk(
    number: int, call: Call, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Broken: a disk that fills up in mid-run ends in a traceback, or the run cannot be gone on with afterwards."""
    append, straight = RunFolder.append, json.loads(call("run", "promptfl", *words, "--json").out)

    def full(self: RunFolder, log: str, rows: Any) -> None:
        if log == "rounds.jsonl" and self.done() == 1:
            raise OSError(number, os.strerror(number), str(self.folder / log))
        append(self, log, rows)

    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "append", full)
        answer = call("run", "promptfl", *words, "--out", "mine")
    room = "make room there; " if number == errno.ENOSPC else ""
    told = f"error: stopped: {os.strerror(number)} (mine/rounds.jsonl); {room}"
    assert (answer.code, answer.out) == (2, "")
    assert answer.err == f"{told}go on with: fedtailor run --resume mine\n"
    assert json.loads(call("run", "--resume", "mine", "--json").out)["global"] == straight["global"]


def test_a_full_disk_in_a_comparison(call: Call, words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Broken: the same there."""

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "append", full)
        answer = call("compare", "promptfl", *words, "--out", "mine")
    assert answer.code == 2
    assert "No space left on device; make room there; go on with: fedtailor compare --resume mine" in answer.err
    assert call("compare", "--resume", "mine", "--json").code == 0


def test_other_errors_of_the_system_are_not_dressed_up(
    call: Call, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Broken: a defect of ours reads as if the disk were full."""

    def lost(*_: Any) -> None:
        raise FileNotFoundError(errno.ENOENT, "none")

    monkeypatch.setattr(RunFolder, "append", lost)
    with pytest.raises(FileNotFoundError):
        call("run", "promptfl", *words)


def test_a_resumed_bar_begins_where_it_was(small: dict[str, Any], tmp_path: Path) -> None:
    """Broken: the bar of a resumed run stands at 0 until its next round is over."""
    from fedtailor.cli.progress import Progress

    class Once(Progress):
        begun: float | None = None

        def on_start(self, *what: Any) -> None:
            super().on_start(*what)
            self.begun = self.bars.tasks[-1].completed

        def on_round(self, *what: Any) -> None:
            raise KeyboardInterrupt

    first, second = Once(enabled=False), Once(enabled=False)
    with pytest.raises(KeyboardInterrupt):
        fedtailor.run("promptfl", small, out=tmp_path / "mine", callback=first)
    with pytest.raises(KeyboardInterrupt):
        fedtailor.resume(tmp_path / "mine", callback=second)
    assert (first.begun, second.begun) == (0, 1)


def test_encoding_shows_its_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Images a second, not counting what was there when it began; other bars have none."""
    from fedtailor.cli.progress import Progress, Speed

    progress, clock = Progress(enabled=False), itertools.count()
    progress.bars.get_time = lambda: float(next(clock))
    for done in (1000, 1016, 1032, 1048):
        for what in ("encoding images", "other work"):
            progress.on_progress(what, done, 2000)
    encoding, other = progress.bars.tasks
    assert [str(Speed().render(task)) for task in (encoding, other)] == [f"{encoding.speed:.1f} images/s", ""]
    assert 0 < (encoding.speed or 0) < 16


@pytest.mark.parametrize("kind", list(catalogue.KINDS))
def test_lists(call: Call, kind: str) -> None:
    """Each list as a table with every name in it, and as JSON."""
    found = json.loads(call("list", kind, "--json").out)
    table = call("list", kind)
    assert table.code == 0
    assert found
    assert all(row["name"] in table.out for row in found)
    assert max(map(len, table.out.splitlines())) <= 100


def test_lists_by_default_and_by_mistake(call: Call) -> None:
    """Methods if nothing is said; a wrong kind has its hint."""
    assert call("list").out == call("list", "methods").out
    answer = call("list", "data")
    assert (answer.code, answer.out) == (2, "")
    assert "unknown list 'data'; did you mean 'datasets'?" in answer.err


@pytest.mark.parametrize("method", list(METHODS))
def test_show(call: Call, method: str) -> None:
    """Every method has its page, with its settings."""
    page, facts = call("show", method), json.loads(call("show", method, "--json").out)
    assert page.code == 0
    assert page.out.startswith(method)
    assert all(key in page.out for key in ("rounds", "lr", "data.alpha", "backbone"))
    assert {row["key"] for row in facts["settings"]["run"]} >= {"rounds", "clients", "seed"}
    assert max(map(len, page.out.splitlines())) <= 100


def test_show_a_stranger(call: Call) -> None:
    """With the nearest name."""
    answer = call("show", "promptf")
    assert (answer.code, answer.out) == (2, "")
    assert "unknown method 'promptf'; did you mean 'promptfl'?" in answer.err


def test_data_show(call: Call, words: list[str], pictures: Path, tmp_path: Path) -> None:
    """Counts by class and client, as a table, as JSON, and drawn."""
    rest = [w for w in words if w.startswith(("data.", "clients="))]
    table = call("data", "show", f"folder:{pictures}", *rest, "--png", "heat.png")
    assert table.code == 0
    assert all(word in table.out for word in ("red dot", "green dot", "client 2", "48 training and 36 test"))
    with Image.open(tmp_path / "heat.png") as drawn:
        assert drawn.format == "PNG"
    found = json.loads(call("data", "show", f"folder:{pictures}", *rest, "--json").out)
    assert [sum(column) for column in zip(*found["counts"], strict=True)] == [8, 16, 24]  # blue, green, red
    assert found["classes"] == ["blue dot", "green dot", "red dot"]
    assert sum(found["sizes"]) == found["train"] == 48
    assert sum(found["test_sizes"]) <= found["test"] == 36
    assert sorted(label for members in found["groups"].values() for label in members) == [0, 1, 2]


@pytest.mark.parametrize("where", ["no/such/heat.png", "heat.xyz"])
def test_a_png_that_cannot_be_written(call: Call, words: list[str], pictures: Path, where: str) -> None:
    """A folder that is not there, or a name that is no picture's."""
    rest = [w for w in words if w.startswith(("data.", "clients="))]
    answer = call("data", "show", f"folder:{pictures}", *rest, "--png", where)
    assert (answer.code, answer.out) == (2, "")
    assert f"cannot draw into {where}" in answer.err


def test_data_check(call: Call, pictures: Path, tmp_path: Path) -> None:
    """Exit code 0 and a word where all is well; 1 and the file's name where one cannot be read."""
    answer = call("data", "check", f"folder:{pictures}")
    assert (answer.code, answer.out.split(": ")[-1]) == (0, "nothing wrong\n")
    bad = tmp_path / "bad"
    for part, name in product(("train", "test"), "ab"):
        (bad / part / name).mkdir(parents=True)
        Image.new("RGB", (4, len(part) + 10 * ord(name))).save(bad / part / name / "good.png")
    (bad / "train" / "a" / "torn.png").write_bytes(b"\x89PNG\r\n\x1a\n torn")
    answer = call("data", "check", f"folder:{bad}")
    assert answer.code == 1
    assert "torn.png" in answer.out.replace("\n", "")
    answer = call("data", "check", f"folder:{bad}", "--json")
    found = json.loads(answer.out)
    assert (answer.code, found["ok"], len(found["findings"])) == (1, False, 1)
    assert call("data", "check", "cifr10").code == 2


def test_doctor(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit code 0 where all that is needed is there, 1 where something is not."""
    good, bad = Finding("bundled CLIP", "loads"), Finding("bundled CLIP", "is not there", "bad")
    note = Finding("extra", "not installed (pip install 'fedtailor[flower]')", "note")
    monkeypatch.setattr(installation, "examine", lambda: [good, note])
    answer = call("doctor")
    assert answer.code == 0
    assert "fedtailor[flower]" in answer.out
    monkeypatch.setattr(installation, "examine", lambda: [bad, note])
    assert call("doctor").code == 1
    answer = call("doctor", "--json")
    assert answer.code == 1
    assert [row["verdict"] for row in json.loads(answer.out)] == ["bad", "note"]


def test_version(call: Call) -> None:
    """The version, and help without any word."""
    assert call("--version").out == f"fedtailor {fedtailor.__version__}\n"
    assert "Usage" in call().out


def test_a_call_leaves_the_command_line_as_it_was(call: Call) -> None:
    """Groups were once added by each call, and a long process read its commands slower and slower."""
    before = len(app.registered_groups), len(app.registered_commands)
    call("--version")
    assert (len(app.registered_groups), len(app.registered_commands)) == before


def shell(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    text = "from fedtailor.cli import main; main()"
    return subprocess.run([sys.executable, "-c", text, *words], cwd=cwd, capture_output=True, text=True, timeout=120)


def test_as_a_process(words: list[str], tmp_path: Path) -> None:
    """A true process: one JSON object and code 0, or a message, code 2 and nothing made."""
    wrong = shell("run", "fedprx", "--json", cwd=tmp_path)
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert wrong.stderr == "error: unknown method 'fedprx'; did you mean 'fedprox'? (fedtailor list methods)\n"
    assert list(tmp_path.iterdir()) == []
    right = shell("run", "promptfl", *words, "--json", cwd=tmp_path)
    assert (right.returncode, right.stderr) == (0, "")
    summary = json.loads(right.stdout)
    assert set(summary) >= KEYS
    assert (tmp_path / summary["run_dir"] / "result.json").is_file()


def test_new_folders_are_numbered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """runs/NAME, then NAME-2, NAME-3."""
    monkeypatch.chdir(tmp_path)
    for expected in ("x", "x-2", "x-3"):
        folder = new_folder("x")
        assert folder == Path("runs") / expected
        folder.mkdir(parents=True)


def test_made_labels_are_told_of(call: Call, words: list[str]) -> None:
    """How many there were and how many were right, after the table and in the JSON."""
    told = call("run", "promptfl", *words, "labels=zeroshot", "--out", "z")
    assert "pseudo-labels by zeroshot: " in told.out
    rounds = [json.loads(line) for line in Path("z/rounds.jsonl").read_text().splitlines()]
    assert all(row["pseudo"]["coverage"] == 100 for row in rounds)
    assert read(Path("z/result.json"))["pseudo_labels"] == rounds[-1]["pseudo"]
    assert "pseudo-labels" not in call("run", "promptfl", *words, "--out", "y").out


def test_a_leak_by_choice_is_told_of(call: Call, words: list[str]) -> None:
    told = call("run", "capt", *words, "data.server=test", "method.bandit=true", "--out", "t")
    assert told.code == 0
    assert "no fair result" in told.out
    assert "no fair result" not in call("run", "capt", *words, "data.server=0.2", "--out", "s").out
