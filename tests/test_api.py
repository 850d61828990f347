"""The package from Python."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import fedtailor
from fedtailor.base.errors import UserError
from fedtailor.runs.callback import Callback
from fedtailor.runs.result import best, last_mean

TIMES = ("seconds", "peak_rss_mb")


def untimed(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{k: v for k, v in row.items() if k not in TIMES} for row in rows]


@pytest.fixture(scope="module")
def result(small: dict[str, Any]) -> fedtailor.Result:
    return fedtailor.run("promptfl", small)


def test_without_a_folder_nothing_is_written(
    small: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run for its result alone leaves no trace where it is run."""
    monkeypatch.chdir(tmp_path)
    result = fedtailor.run("promptfl", {**small, "rounds": 1})
    assert list(tmp_path.iterdir()) == []
    assert result.folder is None
    assert result.summary["run_dir"] is None


def test_keywords_and_dicts(small: dict[str, Any], result: fedtailor.Result) -> None:
    """Short keys may be keywords, and win over the dict before them."""
    again = fedtailor.run("promptfl", {**small, "rounds": 9}, rounds=3)
    assert again.run == result.run
    assert untimed(again.rounds) == untimed(result.rounds)


def test_a_folder_changes_no_number(small: dict[str, Any], result: fedtailor.Result, tmp_path: Path) -> None:
    """With --out and without, the rows are equal, types and all."""
    kept = fedtailor.run("promptfl", small, out=str(tmp_path / "a" / "b"))
    assert untimed(kept.rounds) == untimed(result.rounds)
    assert kept.folder == tmp_path / "a" / "b"


def test_engines_agree(small: dict[str, Any], result: fedtailor.Result) -> None:
    """Through bytes and in another order: the same rows."""
    assert untimed(fedtailor.run("promptfl", small, engine="posted").rounds) == untimed(result.rounds)


def test_seeds(small: dict[str, Any], result: fedtailor.Result) -> None:
    """Another seed deals and draws otherwise."""
    other = fedtailor.run("promptfl", small, seed=1)
    assert untimed(other.rounds) != untimed(result.rounds)
    assert other.summary["zero_shot"] == result.summary["zero_shot"]  # on the whole test set nothing is dealt


def test_training_trains(small: dict[str, Any]) -> None:
    """On colours, with a rate that moves something, the tuned model beats the one it began as."""
    longer = fedtailor.run("promptfl", small, rounds=15, lr=0.2, fraction=1.0)
    assert longer.summary["global"]["overall"] > longer.summary["zero_shot"]["overall"] + 10


def test_summary_is_of_the_rounds(result: fedtailor.Result) -> None:
    """The last round's scores, sums of bytes, and the best of all rounds."""
    s, rows = result.summary, result.rounds
    assert s["global"]["overall"] == round(rows[-1]["global"]["overall"], 4)
    assert s["personal"]["macro_f1"] == round(rows[-1]["personal"]["macro_f1"], 4)
    assert s["worst_client"] == min(rows[-1]["clients"].values())
    assert s["bytes_up"] == sum(row["bytes_up"] for row in rows)
    # 4 rows of the tiny text width, in fp32, up and down for 2 clients in each of 3 rounds
    assert s["bytes_up"] == s["bytes_down"] == 4 * 24 * 4 * 2 * 3
    assert s["best"]["global"]["overall"] == round(max(row["global"]["overall"] for row in rows), 4)


def test_every(small: dict[str, Any], result: fedtailor.Result) -> None:
    """every=2 of 3 rounds: tested after the second and the last, with the numbers they have anyway."""
    sparse = fedtailor.run("promptfl", {**small, "every": 2})
    assert [row["global"] is None for row in sparse.rounds] == [True, False, False]
    assert [row["clients"] == {} for row in sparse.rounds] == [True, False, False]
    assert sparse.rounds[-1]["global"] == result.rounds[-1]["global"]
    assert sparse.summary["global"] == result.summary["global"]


def test_zero_shot(small: dict[str, Any], tmp_path: Path) -> None:
    """No rounds, no bytes; global and personal are CLIP's own; its folder can be resumed."""
    plain = fedtailor.run("zeroshot", {k: v for k, v in small.items() if k != "rounds"}, out=tmp_path / "z")
    s = plain.summary
    assert (s["rounds"], s["bytes_up"], plain.rounds) == (0, 0, [])
    assert s["global"] == s["zero_shot"]
    assert s["personal"] == s["zero_shot_personal"]
    assert fedtailor.resume(tmp_path / "z").summary["global"] == s["global"]


def test_a_run_is_complete(small: dict[str, Any]) -> None:
    """Settings beside a Run would be ambiguous."""
    made = fedtailor.make_run("promptfl", small)
    with pytest.raises(UserError, match="a Run is complete; give further settings to make_run"):
        fedtailor.run(made, rounds=2)


class Listening(Callback):
    def __init__(self) -> None:
        self.heard: list[str] = []

    def on_progress(self, what: str, done: int, total: int) -> None:
        self.heard.append(f"{what} {done}/{total}")

    def on_start(self, experiment: Any, zero_shot: Any, done: int) -> None:
        self.heard.append("started")

    def on_round(self, record: Any, rounds: int) -> None:
        self.heard.append(f"round {record.round}/{rounds}")


def test_callbacks_hear_everything(small: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Opening and encoding first, then the start, then each round; what is cached is not encoded again."""
    monkeypatch.setenv("FEDTAILOR_CACHE", str(tmp_path / "cache"))
    opening = ["opening the data 0/1", "opening the data 1/1"]
    rounds = ["started", "round 1/3", "round 2/3", "round 3/3"]
    encoding = [f"encoding images {n}" for n in ("16/36", "32/36", "36/36", "16/48", "32/48", "48/48")]
    for first in (encoding, []):
        callback = Listening()
        fedtailor.run("promptfl", small, callback=callback)
        assert callback.heard == opening + first + rounds


def test_csv(small: dict[str, Any], pictures: Path, tmp_path: Path) -> None:
    """The same pictures by a table, dealt out by site: client = site."""
    lines = ["path,label,split,site"]
    for path in sorted(pictures.rglob("*.png")):
        _, part, label, name = (*path.parts[-4:],)
        lines.append(f"{path},{label},{part},site {int(name[:2]) % 3}")
    (tmp_path / "table.csv").write_text("\n".join(lines) + "\n")
    rest = {k: v for k, v in small.items() if not k.startswith("data")}
    result = fedtailor.run("promptfl", rest, data=f"csv:{tmp_path / 'table.csv'}", **{"data.partition": "site"})
    assert list(result.rounds[-1]["clients"]) == ["site 0", "site 1", "site 2"]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"backbone": "nowhere"}, "backbone 'nowhere': there is no such folder"),
        ({"backbone.device": "cuda:77"}, "backbone.device=cuda:77"),
        ({"data": "folder:/nowhere"}, "/nowhere is not a folder"),
        ({"clients": 1000}, "1000"),
        ({"data.min_size": 40}, "need 120 to train on"),
        ({"data": "cifar10"}, "is missing; download"),
    ],
)
def test_what_only_shows_later_is_told_too(
    change: dict[str, Any], told: str, small: dict[str, Any], tmp_path: Path
) -> None:
    """Missing files and impossible deals are errors for the user, and leave no folder."""
    with pytest.raises(UserError) as caught:
        fedtailor.run("promptfl", {**small, **change}, out=tmp_path / "run")
    assert told in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_best_and_means_skip_what_is_not_known() -> None:
    """Rounds without a number are left out; with none at all there is none."""

    def row(n: int, overall: float | None) -> dict[str, Any]:
        names = ("overall", "head", "mid", "tail", "macro_f1", "balancedness")
        return {"round": n, "personal": dict.fromkeys(names, overall)}

    rows = [row(1, 30.0), row(2, None), row(3, 50.0), row(4, 40.0)]
    assert (best(rows, "personal") or {})["round"] == 3
    assert (last_mean(rows, "personal") or {})["overall"] == 40.0
    assert best([row(1, None), row(2, None)], "personal") is None
    assert best([], "personal") is last_mean([], "personal") is None
    assert (last_mean([row(n, float(n)) for n in range(1, 13)], "personal") or {})["overall"] == 7.5  # of 3 … 12


def test_public_names() -> None:
    """What __all__ promises is there."""
    assert all(hasattr(fedtailor, name) for name in fedtailor.__all__)
