"""What trackers are sent is what rounds.jsonl has, each round once, and a run is the same with and without them."""

from __future__ import annotations

import json
import logging
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

import fedtailor
from conftest import Call
from fedtailor import trackers
from fedtailor.runs.callback import Together
from fedtailor.trackers.tracker import Tracker, numbers, read_rows

BLOCK = 1 << 15
Sent = list[tuple[int, dict[str, float]]]


class Listed(Tracker):
    """A library that is always there: it keeps what it is sent, and fails when told to."""

    name = "listed"

    def __init__(self, broken: tuple[int, ...] = ()) -> None:
        self.sent: Sent = []
        self.calls: list[str] = []
        self.broken = broken

    def begin(self, settings: Mapping[str, Any]) -> None:
        self.calls.append(f"{'go on' if self.note else 'begin'} rounds={settings['rounds']}")
        self.note["run"] = "mine"

    def send(self, round: int, numbers: Mapping[str, float]) -> None:  # noqa: A002
        if round in self.broken:
            raise OSError("no route")
        self.sent.append((round, dict(numbers)))

    def close(self, finished: bool) -> None:
        self.calls.append("finished" if finished else "stopped")


def due(folder: Path) -> Sent:
    return [(row["round"], numbers(row)) for row in read_rows(folder, done=99)]


def rounds_of(tracker: Listed) -> list[int]:
    return [t for t, _ in tracker.sent]


@pytest.fixture(scope="module")
def tracked(small: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Listed]:
    """A run of two rounds, then of three, resumed by another process as it were."""
    folder, first, second = tmp_path_factory.mktemp("tracked") / "mine", Listed(), Listed()
    fedtailor.run("promptfl", {**small, "rounds": 2}, out=folder, callback=first)
    assert rounds_of(first) == [0, 1, 2]
    assert first.calls == ["begin rounds=2", "finished"]
    fedtailor.resume(folder, rounds=3, callback=second)
    assert second.calls == ["go on rounds=3", "finished"]
    second.sent = first.sent + second.sent
    return folder, second


def test_numbers_by_name() -> None:
    row = {
        "round": 4,
        "cohort": ["Ulm", "Bonn"],
        "global": {"overall": 50.0, "tail": None, "per_class": {"oak": 1.0}},
        "clients": {"Bonn": 50.0, "Ulm": None},
        "bytes_up": 12,
        "dropped": {"Ulm": "late"},
        "diagnostics": {"drift": {"mean": 0.5, "done": True, "clients": 2}, "clusters": {"similar": {"Bonn": 0}}},
    }
    found = {"global/overall": 50.0, "bytes_up": 12.0, "diagnostics/drift/mean": 0.5, "diagnostics/drift/clients": 2.0}
    assert numbers(row) == found


def test_every_round_is_sent_once(tracked: tuple[Path, Listed]) -> None:
    folder, tracker = tracked
    assert tracker.sent == due(folder)
    assert rounds_of(tracker) == [0, 1, 2, 3]
    told = json.loads((folder / "result.json").read_text())
    assert tracker.sent[0][1]["global/overall"] == pytest.approx(told["zero_shot"]["overall"], abs=1e-3)
    assert tracker.sent[-1][1]["personal/overall"] == pytest.approx(told["personal"]["overall"], abs=1e-3)


def test_a_run_is_the_same_without(tracked: tuple[Path, Listed], small: dict[str, Any], tmp_path: Path) -> None:
    folder, _ = tracked
    fedtailor.run("promptfl", {**small, "rounds": 3}, out=tmp_path / "mine")
    for file in ("run.toml", "model/shared.safetensors"):
        assert (folder / file).read_bytes() == (tmp_path / "mine" / file).read_bytes()


def test_a_finished_run_can_be_sent_later(tracked: tuple[Path, Listed]) -> None:
    """As can rounds that were lost: the note says what is there already."""
    folder, late = tracked[0], Listed()
    (folder / "trackers.json").unlink()
    fedtailor.resume(folder, callback=late)
    assert late.sent == due(folder)
    again = Listed()
    fedtailor.resume(folder, callback=again)
    assert again.sent == []


def test_a_tracker_that_fails(small: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The run goes on, nothing is left out, and it is said what is missing and how to send it."""
    folder, broken, mended = tmp_path / "mine", Listed(broken=(2,)), Listed()
    with caplog.at_level(logging.WARNING, "fedtailor.trackers"):
        fedtailor.run("promptfl", small, out=folder, callback=broken)
    assert rounds_of(broken) == [0, 1]
    assert "no route; the run goes on" in caplog.text
    assert f"listed lacks the rounds from 2 on; fedtailor run --resume {folder} --track listed" in caplog.text
    fedtailor.resume(folder, callback=mended)
    assert broken.sent + mended.sent == due(folder)


class Stop(fedtailor.Callback):
    def on_round(self, *_: Any) -> None:
        raise KeyboardInterrupt


def test_a_run_that_is_stopped(small: dict[str, Any], tmp_path: Path) -> None:
    first, second, folder = Listed(), Listed(), tmp_path / "mine"
    with pytest.raises(KeyboardInterrupt):
        fedtailor.run("promptfl", small, out=folder, callback=Together(Stop(), first))
    assert first.calls == ["begin rounds=3", "stopped"]
    assert rounds_of(first) == [0]  # it was not told of round 1, which is kept
    with (folder / "rounds.jsonl").open("a") as file:
        file.write('{"round": 2, "glo')  # as if it had been killed while it wrote
    fedtailor.resume(folder, callback=second)
    assert first.sent + second.sent == due(folder)


def test_without_a_folder(small: dict[str, Any]) -> None:
    with pytest.raises(fedtailor.UserError, match="needs a run folder; give out=") as error:
        fedtailor.run("promptfl", {**small, "data": "folder:nowhere"}, callback=Listed())
    assert "nowhere" not in str(error.value)  # it is told before anything is looked for


def test_a_damaged_note(tracked: tuple[Path, Listed], tmp_path: Path) -> None:
    (tmp_path / "trackers.json").write_text("{")
    with pytest.raises(fedtailor.UserError, match=r"trackers\.json is damaged .* remove it"):
        trackers.tracker.read_notes(tmp_path)


def test_words_of_the_command(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unknown and missing ones are told of before anything is made."""
    stranger = call("run", "--track", "tensorbord", "--out", "mine")
    assert stranger.code == 2
    assert "unknown tracker 'tensorbord'; did you mean 'tensorboard'?" in stranger.err
    monkeypatch.setattr(trackers, "find_spec", lambda _: None)
    missing = call("run", "--track", "wandb", "--out", "mine")
    assert missing.code == 2
    assert "pip install 'fedtailor[wandb]'" in missing.err
    assert list(tmp_path.iterdir()) == []


# --- the libraries themselves, where they are installed: pip install -e '.[trackers]' --------------------------------


@pytest.fixture
def twice(call: Call, small: dict[str, Any], tmp_path: Path) -> Iterator[Any]:
    """A run from the command line, then more rounds of it."""

    def go(name: str) -> Path:
        words = [f"{key}={value}" for key, value in {**small, "rounds": 2}.items()]
        begun = call("run", "promptfl", *words, "--track", name, "--out", "mine", "-q")
        assert begun.code == 0, begun.err
        more = call("run", "--resume", "mine", "rounds=3", "--track", name, "-q")
        assert more.code == 0, more.err
        return tmp_path / "mine"

    return go


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tensorboard(twice: Any) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    folder = twice("tensorboard")
    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    for key in ("global/overall", "personal/worst"):
        found = [(it.step, pytest.approx(it.value)) for it in events.Scalars(key)]
        assert found == [(t, row[key]) for t, row in due(folder)]
    assert [it.step for it in events.Scalars("bytes_up")] == [1, 2, 3]
    assert events.summary_metadata["_hparams_/session_start_info"].plugin_data.plugin_name == "hparams"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_mlflow(twice: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("mlflow")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    from mlflow.tracking import MlflowClient

    folder = twice("mlflow")
    note = json.loads((folder / "trackers.json").read_text())["mlflow"]
    client = MlflowClient(note["uri"])
    run = client.get_run(note["run"])
    assert (run.info.status, run.info.run_name) == ("FINISHED", "mine")
    params, tags = run.data.params, run.data.tags
    assert (params["method.name"], params["rounds"], tags["rounds"]) == ("promptfl", "2", "3")
    found = [(it.step, it.value) for it in client.get_metric_history(note["run"], "global/overall")]
    assert found == [(t, row["global/overall"]) for t, row in due(folder)]
    assert len(client.search_runs([run.info.experiment_id])) == 1


def pieces(data: bytes) -> Iterator[bytes]:
    """The records of a .wandb file: LevelDB's log format, in blocks of 32 KB, behind seven bytes of its own."""
    at, record = 7, b""
    while at + 7 <= len(data):
        if (left := BLOCK - at % BLOCK) < 7:
            at += left  # too little for a head
            continue
        _, length, kind = struct.unpack_from("<IHB", data, at)
        record += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield record
            record = b""


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_wandb_offline(twice: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    monkeypatch.delenv("WANDB_MODE", raising=False)
    from wandb.proto.wandb_internal_pb2 import Record

    folder, found = twice("wandb"), list[tuple[int, float]]()
    ids = {path.name.split("-")[-1] for path in (folder / "wandb").glob("offline-run-*")}
    files = sorted((folder / "wandb").glob("offline-run-*/*.wandb"))
    assert ids == {json.loads((folder / "trackers.json").read_text())["wandb"]["run"]}
    assert len(files) == 2  # one a command, of the same run
    for file in files:
        for data in pieces(file.read_bytes()):
            history = Record.FromString(data).history.item
            items = {it.key or "/".join(it.nested_key): json.loads(it.value_json) for it in history}
            found += [(items["round"], items["global/overall"])] if "round" in items else []
    assert found == [(t, row["global/overall"]) for t, row in due(folder)]


def test_rounds_in_pandas(tracked: tuple[Path, Listed]) -> None:
    """The line of docs/runs.md."""
    pd = pytest.importorskip("pandas")
    folder, _ = tracked
    frame = pd.json_normalize(pd.read_json(folder / "rounds.jsonl", lines=True).to_dict("records"))
    assert frame["global.overall"].tolist() == [row["global/overall"] for t, row in due(folder) if t]
    assert frame["round"].tolist() == [1, 2, 3]
