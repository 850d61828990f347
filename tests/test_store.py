"""The run folder: what is in it, and every way in which it refuses to go on."""

from __future__ import annotations

import itertools
import json
import shutil
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch
from filelock import FileLock
from PIL import Image

import fedtailor
from conftest import CLASSES
from fedtailor.base.errors import UserError
from fedtailor.base.files import write_atomic
from fedtailor.client.job import ClientState
from fedtailor.core.types import Server
from fedtailor.runs.folder import LOGS, RunFolder
from fedtailor.runs.format import FORMAT
from fedtailor.runs.server_bytes import server_from_bytes, server_to_bytes
from run_content import read

SAME = {"seconds": 0, "peak_rss_mb": 0}  # of no interest in a comparison


@pytest.fixture(scope="module")
def finished(small: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "finished"
    fedtailor.run("promptfl", small, out=folder)
    return folder


@pytest.fixture
def run_folder(finished: Path, tmp_path: Path) -> Path:
    """A copy of a finished run, to be spoilt."""
    return Path(shutil.copytree(finished, tmp_path / "run"))


def refused(folder: Path) -> str:
    """The error of resuming; nothing in the folder changes by it, and its lock is free again."""
    before = {p.name: p.read_bytes() for p in folder.rglob("*") if p.is_file()} if folder.is_dir() else {}
    with pytest.raises(UserError) as caught:
        fedtailor.resume(folder)
    after = {p.name: p.read_bytes() for p in folder.rglob("*") if p.is_file()} if folder.is_dir() else {}
    assert after == before
    if folder.is_dir():
        with FileLock(folder / ".lock", timeout=0):
            pass
    return str(caught.value)


def test_what_is_in_it(finished: Path, small: dict[str, Any]) -> None:
    """The files that runs/folder.py names, no half-written one, and no client state outside of state/."""
    assert {p.name for p in finished.iterdir()} - {".lock"} == {
        "run.toml", "rounds.jsonl", "clients.jsonl", "states.jsonl", "checkpoint.json", "checkpoint.before.json",
        "state", "result.json", "data.json", "model", "predictions.safetensors",
    }  # fmt: skip
    rounds = [json.loads(line) for line in (finished / "rounds.jsonl").read_text().splitlines()]
    assert [row["round"] for row in rounds] == [1, 2, 3]
    assert all(len(row["cohort"]) == 2 and len(row["clients"]) == 3 for row in rounds)
    steps = [json.loads(line) for line in (finished / "clients.jsonl").read_text().splitlines()]
    assert [(v["round"], v["client"]) for v in steps] == [(row["round"], k) for row in rounds for k in row["cohort"]]
    assert {v["pass"] for v in steps} == {"train"}
    assert not any(key.startswith("pass_") for v in steps for key in v)
    for row in rounds:
        assert row["bytes_up"] == sum(v["bytes_up"] for v in steps if v["round"] == row["round"]) > 0
    lines = [json.loads(line) for line in (finished / "states.jsonl").read_text().splitlines()]
    named = set()
    for name in ("checkpoint.json", "checkpoint.before.json"):
        note = json.loads((finished / name).read_text())
        counted = (finished / "states.jsonl").read_bytes()[: note["logs"]["states.jsonl"]["size"]].splitlines()
        named |= {note["server"], *{line["client"]: line["name"] for line in map(json.loads, counted)}.values()}
    assert {p.name for p in (finished / "state").iterdir()} == named
    assert len(lines) == 6
    about = tomllib.loads((finished / "run.toml").read_text())["about"]
    assert about["version"] == fedtailor.__version__
    assert set(about) == {"version", "format", "backbone", "train_data", "test_data"}


def test_resuming_a_finished_run_gives_its_summary(run_folder: Path) -> None:
    """The same numbers, no new line in any log."""
    before = {log: (run_folder / log).read_bytes() for log in LOGS}
    written = read(run_folder / "result.json")
    result = fedtailor.resume(run_folder)
    assert {**result.summary, **SAME} == {**written, **SAME, "run_dir": str(run_folder)}
    assert {log: (run_folder / log).read_bytes() for log in LOGS} == before
    assert len(result.rounds) == 3


def test_not_a_run_folder(tmp_path: Path) -> None:
    """Neither an empty folder nor one that is not there."""
    assert "is not a run folder: it has no run.toml" in refused(tmp_path)
    assert "is not a run folder" in refused(tmp_path / "nowhere")
    assert not (tmp_path / "nowhere").exists()


def test_another_version(run_folder: Path) -> None:
    """Its numbers would not continue exactly."""
    toml = run_folder / "run.toml"
    toml.write_text(toml.read_text().replace(f'version = "{fedtailor.__version__}"', 'version = "0.0.1"'))
    assert "was written by fedtailor 0.0.1, this is" in refused(run_folder)


def test_another_format(run_folder: Path) -> None:
    """Broken: half of a folder's records count rounds from 0, the other half from 1."""
    toml = run_folder / "run.toml"
    toml.write_text(toml.read_text().replace(f"format = {FORMAT}\n", ""))
    assert f"has records in format 1, this fedtailor writes format {FORMAT}" in refused(run_folder)


def test_clients_have_names(small: dict[str, Any], pictures: Path, tmp_path: Path) -> None:
    """Broken: nobody can tell from a run's folder which site a number stands for."""
    rows = [("path", "label", "split", "site")]
    for place, part, name in itertools.product(("Ulm", "Aachen"), ("train", "test"), CLASSES):
        files = sorted((pictures / part / name).iterdir())
        some = files[:4] if place == "Ulm" else files[4:]
        rows += [(str(file), name, part, place) for file in some]
    table = tmp_path / "table.csv"
    table.write_text("\n".join(",".join(row) for row in rows))
    rest = {key: value for key, value in small.items() if not key.startswith("data")}
    where = {"data": f"csv:{table}", "data.partition": "site", "clients": 2, "rounds": 1}
    fedtailor.run("promptfl", {**rest, **where}, out=tmp_path / "run")
    facts = read(tmp_path / "run" / "data.json")
    assert facts["clients"] == ["Aachen", "Ulm"]
    assert facts["classes"] == [name.replace("_", " ") for name in sorted(CLASSES)]


def test_a_toml_without_a_version(run_folder: Path) -> None:
    """A run.toml of someone's own writing is no run to go on with."""
    toml = run_folder / "run.toml"
    toml.write_text(toml.read_text().partition("[about]")[0])
    assert "was written by fedtailor (unknown)" in refused(run_folder)


@pytest.mark.parametrize(
    ("old", "new"), [("rounds = 3", "rounds = 5"), ("lr = 0.05", "lr = 0.01"), ("[about]", "\n[about]")]
)
def test_an_edited_toml(run_folder: Path, old: str, new: str) -> None:
    """Other settings than those of the checkpoint, however harmless."""
    toml = run_folder / "run.toml"
    assert old in toml.read_text()
    toml.write_text(toml.read_text().replace(old, new, 1))
    assert "the checkpoint belongs to another run than run.toml says; was it edited?" in refused(run_folder)


def test_other_data(small: dict[str, Any], pictures: Path, tmp_path: Path) -> None:
    """A picture was added since: these would be other numbers."""
    mine = Path(shutil.copytree(pictures, tmp_path / "mine"))
    fedtailor.run("promptfl", {**small, "data": f"folder:{mine}", "rounds": 1}, out=tmp_path / "run")
    Image.new("RGB", (32, 32)).save(mine / "train" / "red_dot" / "new.png")
    assert "the train data is not the one that this run began with" in refused(tmp_path / "run")


def test_other_weights(run_folder: Path, small: dict[str, Any], tiny: Path, tmp_path: Path) -> None:
    """The backbone's folder holds another CLIP now."""
    mine = Path(shutil.copytree(tiny, tmp_path / "mine"))
    fedtailor.run("promptfl", {**small, "backbone": str(mine), "rounds": 1}, out=tmp_path / "new")
    from tiny import tiny_folder

    tiny_folder(mine, seed=1)
    assert "the backbone is not the one that this run began with" in refused(tmp_path / "new")


def test_data_that_is_gone(small: dict[str, Any], pictures: Path, tmp_path: Path) -> None:
    """The dataset's own error, and the folder is free again."""
    mine = Path(shutil.copytree(pictures, tmp_path / "mine"))
    fedtailor.run("promptfl", {**small, "data": f"folder:{mine}", "rounds": 1}, out=tmp_path / "run")
    shutil.rmtree(mine)
    assert "is not a folder" in refused(tmp_path / "run")


def test_a_new_run_needs_an_empty_folder(small: dict[str, Any], run_folder: Path, tmp_path: Path) -> None:
    """A run folder is left alone, with a hint to resume it; so is any other folder, and a file."""
    before = (run_folder / "run.toml").read_bytes()
    with pytest.raises(
        UserError, match=r"is not empty; resume the run in it with --resume .*, or choose another --out"
    ):
        fedtailor.run("promptfl", small, out=run_folder)
    assert (run_folder / "run.toml").read_bytes() == before
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("dear")
    with pytest.raises(UserError, match=r"mine is not empty; choose another --out"):
        fedtailor.run("promptfl", small, out=tmp_path / "mine")
    with pytest.raises(UserError, match=r"letter\.txt is a file; choose another --out"):
        fedtailor.run("promptfl", small, out=tmp_path / "mine" / "letter.txt")
    assert [p.name for p in (tmp_path / "mine").iterdir()] == ["letter.txt"]


def test_a_folder_that_cannot_be_made(small: dict[str, Any], tmp_path: Path) -> None:
    """Below a file, say."""
    (tmp_path / "letter.txt").write_text("dear")
    with pytest.raises(UserError, match=r"cannot make the folder .*; choose another --out"):
        fedtailor.run("promptfl", {**small, "rounds": 1}, out=tmp_path / "letter.txt" / "run")


def test_an_occupied_folder_is_told_before_the_work(
    small: dict[str, Any], run_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody waits for images to be encoded only to hear that the folder is taken."""
    monkeypatch.setattr("fedtailor.runs.execute.build", lambda *_: pytest.fail("the run was built"))
    with pytest.raises(UserError, match="is not empty"):
        fedtailor.run("promptfl", small, out=run_folder)


def test_an_empty_folder_will_do(small: dict[str, Any], tmp_path: Path) -> None:
    """One that the user made beforehand."""
    (tmp_path / "out").mkdir()
    assert fedtailor.run("promptfl", {**small, "rounds": 1}, out=tmp_path / "out").folder == tmp_path / "out"


def test_servers_as_bytes() -> None:
    """Clusters, who is in which, and state, bit for bit."""
    server = Server(
        round=3,
        params={"a": torch.tensor([0.1]), "b": torch.zeros(0, 2)},
        clusters={"similar": {0: {"a": torch.tensor([0.2])}, 4: {"a": torch.tensor([0.3])}}, "diverse": {1: {}}},
        cluster_of={"similar": {7: 4, 10: 0}, "diverse": {}},
        state={"history": torch.arange(3)},
    )
    back = server_from_bytes(server_to_bytes(server))
    assert (back.round, back.cluster_of) == (3, server.cluster_of)
    assert {n: sorted(c) for n, c in back.clusters.items()} == {"similar": [0, 4], "diverse": [1]}
    assert back.clusters["similar"][4]["a"].item() == server.clusters["similar"][4]["a"].item()
    assert back.state["history"].tolist() == [0, 1, 2]
    assert back.params["b"].shape == (0, 2)
    assert server_to_bytes(back) == server_to_bytes(server)


def test_only_changed_clients_are_written(tmp_path: Path) -> None:
    """A checkpoint writes the server and the clients that changed; the others' files stay, and so do those of the
    checkpoint before it. What is older than that goes."""
    store = RunFolder.create(tmp_path / "run", fedtailor.make_run(), {})
    clients = {k: ClientState(memory={"m": torch.tensor([float(k)])}) for k in range(3)}
    store.checkpoint(Server(1, {}), {k: clients[k] for k in (0, 1)})
    stamp = (tmp_path / "run" / "state" / "client-0-1.safetensors").stat().st_mtime_ns
    store.checkpoint(Server(2, {}), {1: clients[1]})
    store.checkpoint(Server(3, {}), {})
    store.checkpoint(Server(4, {}), {1: clients[1]})
    files = {p.name: p for p in (tmp_path / "run" / "state").iterdir()}
    both = {"client-0-1.safetensors", "client-1-2.safetensors", "client-1-4.safetensors"}
    assert set(files) == {"server-3.safetensors", "server-4.safetensors", *both}
    assert files["client-0-1.safetensors"].stat().st_mtime_ns == stamp
    store.close()
    again, _, _ = RunFolder.reopen(tmp_path / "run")
    server, found = again.resume() or pytest.fail("nothing to resume")
    assert server.round == 4
    assert {k: c.memory["m"].item() for k, c in found.items()} == {0: 0.0, 1: 1.0}
    again.checkpoint(Server(5, {}), {})
    assert {p.name for p in (tmp_path / "run" / "state").iterdir()} == {
        "server-4.safetensors", "server-5.safetensors", "client-0-1.safetensors", "client-1-4.safetensors",
    }  # fmt: skip
    again.close()


def test_write_is_all_or_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where forcing to disk fails, the old content is still there."""
    path = tmp_path / "file"
    write_atomic(path, b"old")

    def fail(_: int) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr("fedtailor.base.files.os.fsync", fail)
    with pytest.raises(OSError, match="no space"):
        write_atomic(path, b"new")
    assert path.read_bytes() == b"old"
