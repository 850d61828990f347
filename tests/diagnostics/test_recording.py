"""What a run is asked to record: which names, when, and that training does not notice."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from fedtailor.base.errors import UserError
from fedtailor.cli import catalogue
from fedtailor.client.job import ClientState
from fedtailor.core.types import Params
from fedtailor.evaluation.diagnostics import DIAGNOSTICS, RoundView
from fedtailor.evaluation.diagnostics.predictions import evenness
from fedtailor.evaluation.metrics import METRICS, Score
from fedtailor.runs.execute import train
from fedtailor.runs.folder import RunFolder
from fedtailor.runs.server_bytes import server_to_bytes
from fedtailor.settings.keys import parse
from fedtailor.settings.run import make_run, read_toml
from fedtailor.simulation.build import Experiment
from fedtailor.simulation.local import LocalEngine
from world import world

ANY = ("angle", "tkl", "drift", "balance", "variance")  # of any method
NEEDY = {name for name, diagnostic in DIAGNOSTICS.items() if diagnostic.needs}
COPL = {"tuner.visual_prompt.depth": 2, "epochs": 1}
CASES: dict[str, tuple[str, str, dict[str, Any], set[str]]] = {
    "promptfl": ("promptfl", "text_prompt", {}, set()),
    "fpl": ("fedprox", "lora", {"labels": "fpl"}, {"labels"}),
    "capt": ("capt", "coupled+class_prompt", {"fraction": 1.0}, {"clusters", "bandit"}),
    "fedcopl": ("fedcopl", "text_prompt+visual_prompt", COPL, {"labels"}),
    "fedpurel": ("fedpurel-released", "text_prompt", {}, {"branches"}),
    "two-phase": ("fedpurel", "adapter", {"method.T_p": 1}, {"branches", "closed"}),
}
case = pytest.mark.parametrize(("method", "tuner", "more", "own"), CASES.values(), ids=CASES)


def names(*words: str) -> tuple[str, ...]:
    method, *settings = words
    return make_run(method, parse(settings)).record


@pytest.mark.parametrize("word", ["drift,angle", "[drift, angle]", '["drift", "angle", "drift"]', "drift, angle,"])
def test_spellings(word: str) -> None:
    """However it is written, in the order of the table."""
    assert names("promptfl", f"record={word}") == ("angle", "drift")


def test_names_that_do_and_do_not_fit() -> None:
    """`all` is all that apply. A name that does not exist or apply ends the run before it begins."""
    assert names("promptfl") == names("promptfl", "record=[]") == ()
    assert names("promptfl", "record=all") == names("promptfl", "record=all,angle") == ANY
    assert make_run("promptfl", {"record": ["tkl"]}).record == ("tkl",)
    assert names("capt", "record=all", "method.bandit=false") == (*ANY, "clusters")
    assert names("zeroshot", "record=angle") == names("zeroshot", "record=all") == ()  # there is no round
    with pytest.raises(UserError, match=r"unknown diagnostic 'angel'; did you mean 'angle'\? \(fedtailor list diag"):
        names("promptfl", "record=tkl,angel")
    with pytest.raises(UserError, match="unknown diagnostic"):
        names("zeroshot", "record=angel")
    for name in NEEDY:
        with pytest.raises(UserError, match=f"record={name} needs .* and this run has none; record=all takes"):
            names("promptfl", f"record={name}")
    with pytest.raises(UserError, match="record=bandit needs a bandit"):
        names("capt", "record=bandit", "method.bandit=false")
    with pytest.raises(UserError, match="record: names with commas between them, as in record=angle,drift, got 3"):
        names("promptfl", "record=3")


def test_a_run_folder_says_what_it_records(tmp_path: Path) -> None:
    """Resolved: `all` means the same when it is run again."""
    run = make_run("fedpurel", {"record": "all"})
    (tmp_path / "run.toml").write_text(run.to_toml())
    assert 'record = [\n    "angle",' in run.to_toml()
    assert read_toml(tmp_path / "run.toml") == run
    assert run.record == ("angle", "tkl", "branches", "closed", "drift", "balance", "variance")
    assert read_toml(tmp_path / "run.toml", {"record": "tkl"}).record == ("tkl",)


def test_the_list() -> None:
    rows = catalogue.rows("diagnostics")
    assert [row["name"] for row in rows] == list(DIAGNOSTICS)
    assert {row["name"] for row in rows if row["needs"]} == NEEDY
    assert all(re.search(r"\. (CAPT|FedPuReL|FedCoPL) (Fig|App|Sec)\.|\? FedPuReL Fig\.", row["idea"]) for row in rows)


def end_of(
    experiment: Experiment, folder: Path
) -> tuple[bytes, dict[int, tuple[Params, Params]], list[dict[str, Any]]]:
    """Where training ends, and what was written on the way."""
    store = RunFolder.create(folder, experiment.run, {})
    given = [record.row() for record in train(experiment, store)]
    assert given == store.rounds()  # as they come back from a file
    saved = store.resume()
    assert saved is not None
    return server_to_bytes(saved[0]), {k: (c.local, c.memory) for k, c in saved[1].items()}, given


@case
def test_training_does_not_notice(method: str, tuner: str, more: dict[str, Any], own: set[str], tmp_path: Path) -> None:
    """With everything recorded, server and clients end in the very same bits; each record is plain JSON."""
    plain = end_of(world(method, tuner, **more), tmp_path / "plain")
    experiment = world(method, tuner, record="all", **more)
    full = end_of(experiment, tmp_path / "full")
    assert plain[0] == full[0]
    assert plain[1].keys() == full[1].keys()
    for k in plain[1]:
        for a, b in zip(plain[1][k], full[1][k], strict=True):
            assert a.keys() == b.keys()
            assert all(torch.equal(a[n], b[n]) for n in a)
    aside = {"seconds", "peak_rss_mb", "diagnostics"}
    for before, now in zip(plain[2], full[2], strict=True):
        assert {k: v for k, v in before.items() if k not in aside} == {k: v for k, v in now.items() if k not in aside}
        assert before["diagnostics"] == {}
        assert set(now["diagnostics"]) == {*ANY, *own} == set(experiment.run.record)
        text = json.dumps(now["diagnostics"], allow_nan=False)
        assert json.loads(text) == now["diagnostics"]
    last = full[2][-1]["diagnostics"]
    assert None not in (last["tkl"]["kl"], last["drift"]["all"], last["balance"]["global"]["std"], last["variance"])


def test_stopped_and_resumed(tmp_path: Path) -> None:
    """The same record as straight through."""

    def experiment() -> Experiment:
        return world("capt", "coupled+class_prompt", fraction=1.0, record="all")

    def found(store: RunFolder) -> list[dict[str, Any]]:
        return [row["diagnostics"] for row in store.rounds()]

    straight, broken = (RunFolder.create(tmp_path / name, experiment().run, {}) for name in ("straight", "broken"))
    list(train(experiment(), straight))
    next(train(experiment(), broken))
    list(train(experiment(), broken, resuming=True))
    assert found(straight) == found(broken)
    assert len(found(straight)) == 3


def test_the_trace_is_kept_only_for_a_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """And of one round only."""
    engines: list[LocalEngine] = []
    step = LocalEngine.step

    def listening(self: LocalEngine, *given: Any) -> Any:
        engines.append(self)
        return step(self, *given)

    monkeypatch.setattr(LocalEngine, "step", listening)
    list(train(world("fedavg", "text_prompt")))
    assert engines[-1].trace is None
    list(train(world("fedavg", "text_prompt", record="balance")))
    assert [t.task.round for t in engines[-1].trace or []] == [2, 2]


def test_a_round_begins_where_the_last_one_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the loop hands over as the state before a round is that after the one before, at server and clients."""
    given: list[tuple[RoundView, dict[int, ClientState], dict[int, ClientState]]] = []

    def listening(names: object, seen: RoundView) -> dict[str, Any]:
        given.append((seen, {k: seen.clients_before[k] for k in range(4)}, {k: seen.clients[k] for k in range(4)}))
        return {}

    monkeypatch.setattr("fedtailor.simulation.loop.measure", listening)
    list(train(world("fedavg", "text_prompt", record="drift")))
    for (last, _, ended), (seen, began, now) in pairwise(given):
        assert seen.before is last.after
        assert all(began[k] == ended[k] for k in range(4))
        assert all((began[k] is ended[k]) == (k in last.clients) for k in last.cohort)
        assert all(began[k] is not now[k] for k in seen.cohort)
        assert seen.before.round + 1 == seen.after.round


def test_evenness_by_hand() -> None:
    """Classes at 100, 50 and 0 percent: a deviation of √(5000/3); a class without test pictures counts nowhere."""
    score = Score({**dict.fromkeys(METRICS), "balancedness": 33.5}, per_class=(100.0, None, 50.0, 0.0))
    assert evenness(score) == {"balancedness": 33.5, "std": pytest.approx((5000 / 3) ** 0.5)}
    assert evenness(Score(dict.fromkeys(METRICS), per_class=(None,))) == {"balancedness": None, "std": None}
    assert evenness(None) is None


def test_balance_is_of_tested_rounds() -> None:
    """Where scores are, and their own numbers."""
    rows = [record.row() for record in train(world("fedavg", "text_prompt", record="balance", every=2))]
    assert rows[0]["diagnostics"]["balance"] == {"global": None, "personal": None}
    for whose in ("global", "personal"):
        assert rows[1]["diagnostics"]["balance"][whose]["balancedness"] == rows[1][whose]["balancedness"]


def test_the_page_names_them_all() -> None:
    page, _ = (Path(__file__).parents[2] / "docs/diagnostics.md").read_text().split("## Details")
    assert re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE) == list(DIAGNOSTICS)
