"""`fedtailor plot`: every figure is drawn from what runs wrote, and its CSV has the records' numbers."""

from __future__ import annotations

import csv
import json
import re
import shlex
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, NamedTuple
from xml.etree import ElementTree

import numpy as np
import pytest
import torch

import fedtailor
from conftest import Call
from fedtailor.base.errors import UserError
from fedtailor.base.names import told_apart
from fedtailor.data.federation import Federation
from fedtailor.data.groups import Groups
from fedtailor.data.partitions.base import Share
from fedtailor.evaluation.testing import score_zero_shot
from fedtailor.report.figures import FIGURES, draw
from fedtailor.report.figures.record import ZERO_SHOT, RunRecord, Texts, classes_of, series_of
from fedtailor.report.figures.style import class_ticks
from fedtailor.runs.execute import data_facts
from fedtailor.runs.folder import RunFolder
from fedtailor.runs.records import read_runs
from fedtailor.settings.keys import parse
from fedtailor.settings.run import make_run, read_toml
from fedtailor.simulation.build import assemble, build
from world import NAMES, checkpoint, dataset, settings

METRICS = ("overall", "head", "mid", "tail")
FEDCOPL = {"tuner.visual_prompt.depth": 2, "epochs": 1, "tuner.text_prompt.length": 4}
RUNS: dict[str, tuple[str, dict[str, Any]]] = {
    "capt": ("capt", {}),
    "capt-1": ("capt", {"seed": 1}),
    "promptfl": ("promptfl", {}),
    "fedpurel": ("fedpurel", {"method.T_p": 2}),
    "fedpurel-half": ("fedpurel", {"method.T_p": 2, "method.lam": 0.5}),
    "fedcopl": ("fedcopl", FEDCOPL),
}
# For each figure, runs that have what it needs.
SHOWN = {name: ("capt", "capt-1", "promptfl") for name, figure in FIGURES.items() if figure.several}
SHOWN |= {name: ("capt",) for name, figure in FIGURES.items() if not figure.several}
SHOWN |= {"pseudo-labels": ("fedcopl",), "branches": ("fedpurel",), "sweep": ("fedpurel", "fedpurel-half")}
# Those that are lines of what was recorded: row, column and line → the path of a number in rounds.jsonl.
PARTS = [(part, metric) for part in ("global", "personal") for metric in METRICS]
LINES: dict[str, dict[tuple[str, str, str], tuple[str, ...]]] = {
    "curves": {(part, metric, ""): (part, metric) for part, metric in PARTS},
    "variance": {
        ("", "within clients, σ²", ""): ("diagnostics", "variance", "sigma2"),
        ("", "between clients, δ²", ""): ("diagnostics", "variance", "delta2"),
        ("", "its bound, G²Δ²", ""): ("diagnostics", "variance", "bound"),
    },
    "drift": {
        ("", title, f", {tower}"): ("diagnostics", "drift", tower, key)
        for title, key in (("drift diversity", "diversity"), ("cosine distance", "cosine_distance"))
        for tower in ("text", "image")
    },
    "pseudo-labels": {
        (kind, group, ""): ("diagnostics", "labels", group, kind)
        for kind in ("accuracy", "coverage")
        for group in METRICS
    },
    "tkl": {
        ("", "temperature-aligned, D_TKL(z ‖ f)", ""): ("diagnostics", "tkl", "tkl"),
        ("", "plain, KL(z ‖ f)", ""): ("diagnostics", "tkl", "kl"),
    },
    "angle": {
        ("", "angle (degrees)", ""): ("diagnostics", "angle", "degrees"),
        ("", "clients in conflict (%)", ""): ("diagnostics", "angle", "conflict"),
    },
    "balance": {
        (part, title, ""): ("diagnostics", "balance", part, key)
        for part in ("global", "personal")
        for title, key in (("balancedness (%)", "balancedness"), ("std of class accuracies (%)", "std"))
    },
}


class Drawn(NamedTuple):
    files: list[Path]
    numbers: list[dict[str, str]]


@pytest.fixture(scope="module")
def folders(small: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Runs of all three papers, with everything recorded."""
    root = tmp_path_factory.mktemp("runs")
    for name, (method, more) in RUNS.items():
        fedtailor.run(method, {**small, "fraction": 1.0, **more, "record": "all"}, out=root / name)
    return {name: root / name for name in RUNS}


@pytest.fixture(scope="module")
def drawn(folders: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Drawn]:
    """Every figure, once as PNG and once as SVG."""
    out, found = tmp_path_factory.mktemp("figures"), {}
    for name, shown in SHOWN.items():
        runs = read_runs(folders[run] for run in shown)
        files = [draw(name, runs, out / f"{name}.{form}")[0] for form in ("png", "svg")]
        with files[0][1].open() as text:
            found[name] = Drawn([files[0][0], files[1][0]], list(csv.DictReader(text)))
    return found


def rounds(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]


def facts(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "data.json").read_text()))


def at(value: Any, path: tuple[str, ...]) -> Any:
    for key in path:
        value = value and value[key]
    return value


def lines_of(shown: tuple[str, ...]) -> Iterator[tuple[str, list[str]]]:
    """Each line's label, and its runs: seeds are one line."""
    for method in dict.fromkeys(RUNS[run][0] for run in shown):
        yield method, [run for run in shown if RUNS[run][0] == method]


@pytest.mark.parametrize("name", FIGURES)
def test_pictures(name: str, drawn: dict[str, Drawn]) -> None:
    """A PNG that is not empty, a readable SVG with letters in it, and a CSV with lines."""
    png, svg = drawn[name].files
    assert png.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert png.stat().st_size > 8000
    texts = [text.text for text in ElementTree.parse(svg).iter("{http://www.w3.org/2000/svg}text")]
    assert len(texts) > 4
    assert drawn[name].numbers
    if name in {"per-class", "heatmap", "tsne"}:
        assert {"red dot", "green dot", "blue dot"} <= set(texts)  # not the folders' names, nor numbers


@pytest.mark.parametrize("name", LINES)
def test_lines_are_the_records(name: str, drawn: dict[str, Drawn], folders: dict[str, Path]) -> None:
    """Each number of each line, round by round, is that of rounds.jsonl, or the mean over seeds; none is left out."""
    expected = {}
    for (row, column, suffix), path in LINES[name].items():
        for label, runs in lines_of(SHOWN[name]):
            for t in (1, 2, 3):
                values = [at(rounds(folders[run])[t - 1], path) for run in runs]
                if known := [value for value in values if value is not None]:
                    expected[row, column, label + suffix, t] = fmean(known), stdev(known) if len(known) > 1 else None
    numbers = [row for row in drawn[name].numbers if row["line"] != ZERO_SHOT]
    found = {(r["row"], r["column"], r["line"], int(r["round"])): r for r in numbers}
    assert len(found) == len(numbers)
    assert found.keys() == expected.keys()
    for key, (mean, std) in expected.items():
        assert float(found[key]["value"]) == pytest.approx(mean, rel=1e-12)
        assert found[key]["std"] == "" if std is None else float(found[key]["std"]) == pytest.approx(std)


def test_zero_shot_is_a_level_line(drawn: dict[str, Drawn], folders: dict[str, Path]) -> None:
    """From the first round to the last, in every panel that has one, the mean over all runs."""
    found = [row for row in drawn["curves"].numbers if row["line"] == ZERO_SHOT]
    assert {row["round"] for row in found} == {"1", "3"}
    for row in found:
        known = [facts(folders[run])["zero_shot"][row["row"]][row["column"]] for run in SHOWN["curves"]]
        assert float(row["value"]) == pytest.approx(fmean(v for v in known if v is not None))


def test_curves_of_clients_that_close(folders: dict[str, Path], tmp_path: Path) -> None:
    """FedPuReL's personal curve is drawn beside what was tested, and meets it in the closing round."""
    (_, numbers), _ = draw("curves", read_runs([folders["fedpurel"]]), tmp_path / "curves.png")
    with numbers.open() as text:
        rows = [row for row in csv.DictReader(text) if (row["row"], row["column"]) == ("personal", "overall")]
    lines = {label: [float(r["value"]) for r in rows if r["line"] == label] for label in {r["line"] for r in rows}}
    closed = lines["fedpurel, if closed now"]
    assert closed == [row["diagnostics"]["closed"]["overall"] for row in rounds(folders["fedpurel"])]
    assert closed[-2] == lines["fedpurel"][-1]


def test_classes(drawn: dict[str, Drawn], folders: dict[str, Path]) -> None:
    """The last round's accuracy of each class and its gain over zero-shot; the most frequent class first."""
    numbers = drawn["per-class"].numbers
    assert [row["name"] for row in numbers[:3]] == ["red dot", "green dot", "blue dot"]  # 24, 16 and 8 pictures
    for row in numbers:
        runs, name = dict(lines_of(SHOWN["per-class"]))[row["line"]], row["name"]
        after = fmean(rounds(folders[run])[-1][row["part"]]["per_class"][name] for run in runs)
        before = fmean(facts(folders[run])["zero_shot"][row["part"]]["per_class"][name] for run in runs)
        assert float(row["value"]) == pytest.approx(after)
        assert float(row["gain"]) == pytest.approx(after - before)
    assert len(numbers) == 2 * 2 * 3


def test_gains(drawn: dict[str, Drawn], folders: dict[str, Path]) -> None:
    for row in drawn["gains"].numbers:
        runs, (part, metric) = dict(lines_of(SHOWN["gains"]))[row["line"]], (row["part"], row["classes"])
        gains = [rounds(folders[r])[-1][part][metric] - facts(folders[r])["zero_shot"][part][metric] for r in runs]
        assert float(row["value"]) == pytest.approx(fmean(gains))
    assert {row["classes"] for row in drawn["gains"].numbers} <= set(METRICS)


def test_bytes_add_up(drawn: dict[str, Drawn], folders: dict[str, Path]) -> None:
    """The last point stands at all that was sent, up and down."""
    for row in drawn["bytes"].numbers:
        runs = dict(lines_of(SHOWN["bytes"]))[row["line"]]
        sums = [sum(r["bytes_up"] + r["bytes_down"] for r in rounds(folders[x])[: int(row["round"])]) for x in runs]
        assert float(row["sent up and down (MB)"]) == pytest.approx(fmean(sums) / 1e6)
        last = [rounds(folders[run])[int(row["round"]) - 1][row["column"]]["overall"] for run in runs]
        assert float(row["value"]) == pytest.approx(fmean(last))


def test_branches(drawn: dict[str, Drawn], folders: dict[str, Path]) -> None:
    """Of the closing round: there are no personal parts before."""
    last = rounds(folders["fedpurel"])[-1]["diagnostics"]["branches"]
    for row in drawn["branches"].numbers:
        assert float(row["value"]) == last[row["classes"]][row["branch"]]
    assert len(drawn["branches"].numbers) == 2 * sum(part["right"] > 0 for part in last.values())


def test_recorded_but_not_yet_there(folders: dict[str, Path], tmp_path: Path) -> None:
    """FedPuReL's branches before its closing round: to record them would not help."""
    (run,) = read_runs([folders["fedpurel"]])
    with pytest.raises(UserError, match=r"branches: the records of .* hold no number to draw"):
        draw("branches", [replace(run, rounds=run.rounds[:2])], tmp_path / "b.png")


def test_bandit(drawn: dict[str, Drawn], folders: dict[str, Path]) -> None:
    seen = [row["diagnostics"]["bandit"] for row in rounds(folders["capt"])]
    for row in drawn["bandit"].numbers:
        of = seen[int(row["round"]) - 1]
        assert float(row["value"]) == of["values"][row["arm"]]
        assert row["chosen"] == str(int(row["arm"]) == of["arms"][-1])
        assert row["aggregated"] == str(of["aggregated"])
    assert len(drawn["bandit"].numbers) == 3 * len(seen[0]["values"])


def test_heatmap(drawn: dict[str, Drawn], folders: dict[str, Path]) -> None:
    """Counts of the split, clients of a cluster together, clusters as the last round had them."""
    counts, clusters = facts(folders["capt"])["counts"], rounds(folders["capt"])[-1]["diagnostics"]["clusters"]
    numbers = drawn["heatmap"].numbers
    for row in numbers:
        k, c = int(row["client"]), int(row["class"])
        assert int(row["count"]) == counts[k][c]
        assert float(row["share"]) == pytest.approx(100 * counts[k][c] / sum(counts[k]))
        assert int(row["cluster"]) == clusters[row["panel"].split()[0]][row["client"]]
    for panel in {row["panel"] for row in numbers}:
        order = [int(row["cluster"]) for row in numbers if row["panel"] == panel]
        assert order == sorted(order)
        assert len(order) == 3 * 3


def test_heatmap_without_clusters(folders: dict[str, Path], tmp_path: Path) -> None:
    """All clients, once."""
    (_, numbers), _ = draw("heatmap", read_runs([folders["promptfl"]]), tmp_path / "map.png")
    with numbers.open() as text:
        rows = list(csv.DictReader(text))
    assert np.array([row["count"] for row in rows], int).sum() == 24 + 16 + 8
    assert [row["client"] for row in rows] == ["0"] * 3 + ["1"] * 3 + ["2"] * 3


def test_text_features(drawn: dict[str, Drawn], folders: dict[str, Path]) -> None:
    """They are those of the checkpoint's prompts, without a look at the dataset; the server's and every client's."""
    folder = folders["capt"]
    (run,) = read_runs([folder])
    owners, general, aware = run.texts()
    assert owners == ["server", "0", "1", "2"]
    model, (server, clients) = build(read_toml(folder / "run.toml")).job.model, RunFolder(folder).saved()
    with torch.no_grad():
        expected = model.texts(server.params, ("shared", "own"))
        own = model.texts({**server.params, **clients[1].tuned}, ("shared", "own"))
    assert np.array_equal(general[0], expected["shared"].numpy())
    assert np.array_equal(aware[0], expected["own"].numpy())
    assert np.array_equal(aware[2], own["own"].numpy())
    assert not np.array_equal(aware[0], aware[2])
    assert len(drawn["tsne"].numbers) == 2 * 4 * 3


def test_features_in_common_are_one_point(folders: dict[str, Path]) -> None:
    """A class that a client has no pictures of keeps its prompt: its features stand where the others' do."""
    (run,) = read_runs([folders["capt"]])
    general, aware = np.random.default_rng(0).normal(size=(2, 2, 3, 8)).astype(np.float32)
    aware[1, 0] = aware[0, 0]
    rows = FIGURES["tsne"].source.table([replace(run, texts=lambda: Texts(["server", "client 0"], general, aware))])
    places = {(row["owner"], row["prompt"], row["class"]): (row["x"], row["y"]) for row in rows}
    assert places["server", "class-aware", 0] == places["client 0", "class-aware", 0]
    assert len(set(places.values())) == 2 * 2 * 3 - 1


def test_a_look_changes_nothing(folders: dict[str, Path]) -> None:
    before = {path: path.read_bytes() for path in folders["capt"].rglob("*") if path.is_file()}
    read_runs([folders["capt"]])[0].texts()
    assert {path: path.read_bytes() for path in folders["capt"].rglob("*") if path.is_file()} == before


# --- sweeps ---------------------------------------------------------------------------------------------------------


def changed(run: RunRecord, score: float, **settings: Any) -> RunRecord:
    """The same run with other settings, and other numbers at its end."""
    last = run.rounds[-1]
    ended = {**last, "global": {**last["global"], "overall": score}}
    keys = {key.replace("__", "."): value for key, value in settings.items()}
    return RunRecord(run.folder / str(score), {**run.settings, **keys}, [*run.rounds[:-1], ended], run.data, run.texts)


def table_of(runs: list[RunRecord]) -> list[dict[str, Any]]:
    return FIGURES["sweep"].source.table(runs)


def test_sweep_of_one_setting(drawn: dict[str, Drawn], folders: dict[str, Path]) -> None:
    """The last round's numbers at each λ, the smallest first."""
    numbers = [row for row in drawn["sweep"].numbers if row["line"] == "fedpurel"]
    runs = {"0.5": "fedpurel-half", "0.9": "fedpurel"}
    assert list(dict.fromkeys(row["lam"] for row in numbers)) == ["0.5", "0.9"]
    for row in numbers:
        assert float(row["value"]) == rounds(folders[runs[row["lam"]]])[-1][row["row"]][row["column"]]


def test_sweep_of_two_settings(folders: dict[str, Path], tmp_path: Path) -> None:
    """A grid of overall accuracies; a cell is the mean over its seeds, and may be missing."""
    (run,) = read_runs([folders["capt"]])
    cells = {(2, 0.1): 50.0, (3, 0.1): 51.0, (3, 0.5): 53.0}
    runs = [changed(run, score, clients=k, data__partition__alpha=a) for (k, a), score in cells.items()]
    runs += [changed(run, 55.0, clients=3, data__partition__alpha=0.5, seed=1)]
    found = [row for row in table_of(runs) if row["row"] == "global"]
    assert {(row["clients"], row["data.alpha"]): row["value"] for row in found} == {**cells, (3, 0.5): 54.0}
    assert [row["seeds"] for row in found] == [1, 1, 2]
    files, _ = draw("sweep", runs, tmp_path / "grid.png")
    assert files[0].stat().st_size > 8000


def test_sweep_of_a_list(folders: dict[str, Path]) -> None:
    """A setting may be a list, as the bandit's arms are."""
    (run,) = read_runs([folders["capt"]])
    found = table_of([run, changed(run, 1.0, method__schedule__arms=(1, 2))])
    assert {row["arms"] for row in found} == {(1, 2, 3, 5, 7, 10), (1, 2)}


def test_sweep_of_none_or_too_many(folders: dict[str, Path]) -> None:
    (run,) = read_runs([folders["capt"]])
    with pytest.raises(UserError, match="differ in one setting or two; these differ in none but their seed"):
        table_of([run, changed(run, 1.0, seed=1)])
    with pytest.raises(UserError, match="these differ in 3: rounds, fraction, lr"):
        table_of([run, changed(run, 1.0, rounds=7, fraction=0.1, local__lr=3.0)])
    (other,) = read_runs([folders["promptfl"]])
    with pytest.raises(UserError, match="sweep: promptfl has no setting lam; leave its runs out"):
        table_of([run, changed(run, 1.0, method__lam=0.5), other])


# --- lines and labels -----------------------------------------------------------------------------------------------


def test_labels(folders: dict[str, Path]) -> None:
    """A method's name, and only those settings that tell its lines apart; seeds are one line."""
    runs = read_runs(folders[name] for name in ("capt", "capt-1", "promptfl", "fedpurel", "fedpurel-half"))
    assert [(one.label, len(one.runs)) for one in series_of(runs)] == [
        ("capt", 2), ("promptfl", 1), ("fedpurel lam=0.9", 1), ("fedpurel lam=0.5", 1),
    ]  # fmt: skip
    other = changed(runs[0], 1.0, clients=9)
    assert [one.label for one in series_of([runs[0], other, runs[2]])] == [
        "capt clients=3", "capt clients=9", "promptfl clients=3",
    ]  # fmt: skip


def test_the_same_run_twice(folders: dict[str, Path], tmp_path: Path) -> None:
    """A folder given twice is read once; a copy would be taken for a second seed."""
    assert len(read_runs([folders["capt"], folders["capt"].parent / "." / "capt"])) == 1
    copy = shutil.copytree(folders["promptfl"], tmp_path / "copy")
    with pytest.raises(UserError, match="are the same run, seed and all; give one of them"):
        series_of(read_runs([folders["promptfl"], copy]))


def test_many_classes_are_not_all_named() -> None:
    """Sixty names at most: more could not be read."""
    from matplotlib.figure import Figure

    axes = Figure().subplots()
    class_ticks(axes, [f"class {c}" for c in range(1000)], "class")
    shown = [label.get_text() for label in axes.get_xticklabels()]
    assert len(shown) <= 60
    assert shown[:2] == ["class 0", "class 17"]
    assert axes.get_xlabel() == "class (one in 17 is named)"


# --- data.json ------------------------------------------------------------------------------------------------------


def test_data_json(folders: dict[str, Path]) -> None:
    """What the experiment has: names, groups, who holds what, zero-shot scores of both kinds."""
    noted, experiment = facts(folders["capt"]), build(read_toml(folders["capt"] / "run.toml"))
    assert noted["classes"] == list(experiment.federation.dataset.classes)
    assert noted["counts"] == experiment.federation.counts.tolist()
    assert noted["groups"] == {name: [noted["classes"][c] for c in some] for name, some in experiment.groups.items()}
    assert noted["clients"] == ["0", "1", "2"]
    assert noted["template"] == experiment.federation.dataset.template
    shared, personal = score_zero_shot(experiment.job, experiment.tests)
    assert noted["zero_shot"] == {"global": shared.row(noted["classes"]), "personal": personal.row(noted["classes"])}


def test_a_server_has_no_counts_of_its_clients(folders: dict[str, Path]) -> None:
    """It has no training picture to count by; classes then stand in their order."""
    data, none = dataset(), np.empty(0, np.int64)
    there = Federation(replace(data, train=data.train.subset(none)), (Share(none, np.arange(len(data.test))),))
    run = settings("promptfl", "text_prompt")
    server = assemble(run, there, Groups.nowhere(len(NAMES)), checkpoint(), alone=False)
    noted = data_facts(server, score_zero_shot(server.job, server.tests))
    assert noted["counts"] is None
    assert noted["groups"] == {"head": [], "mid": [], "tail": []}
    assert noted["classes"] == list(NAMES)
    (record,) = read_runs([folders["capt"]])
    order, _, names, groups, axis = classes_of(replace(record, data=noted))
    assert (order, names[1], groups) == ([0, 1, 2, 3, 4], "maple tree", {})
    assert axis == "class, by index (counts are not known)"


def test_a_folder_without_data_json(folders: dict[str, Path], tmp_path: Path) -> None:
    """Broken: a KeyError, or a figure of classes without names."""
    folder = shutil.copytree(folders["capt"], tmp_path / "run")
    (folder / "data.json").unlink()
    with pytest.raises(UserError, match=r"has rounds and no data\.json; resume the run, which writes it again"):
        read_runs([folder])


def test_classes_of_one_name(folders: dict[str, Path]) -> None:
    """Broken: of two classes with a name in common, as ImageNet has them, records keep the second alone."""
    assert told_apart(["crane", "heron", "crane"]) == ("crane (0)", "heron", "crane (2)")
    (run,) = read_runs([folders["promptfl"]])
    twins = {**run.data, "classes": ["crane", "heron", "crane"], "groups": {"head": ["crane (2)"]}}
    found = classes_of(replace(run, data=twins))
    assert (found.keys, found.groups) == (("crane (0)", "heron", "crane (2)"), {2: "head"})


# --- the page -------------------------------------------------------------------------------------------------------

PAGE = (Path(__file__).parents[1] / "docs/figures.md").read_text()


def test_the_page_names_them_all() -> None:
    """In the same order, with the same places in the papers and the same record."""
    rows = re.findall(r"^\| `([\w-]+)` \|.+?\|(.*?)\|(.*)\|$", PAGE, re.MULTILINE)
    assert [(name, paper.strip()) for name, paper, _ in rows] == [(n, figure.paper) for n, figure in FIGURES.items()]
    for name, _, needs in rows:
        assert {FIGURES[name].record, FIGURES[name].optional} - {""} <= set(re.findall(r"record=(\w+)", needs)), name
        assert ("one run" in needs) == (not FIGURES[name].several), name


def test_its_commands() -> None:
    """Settings are known, and so are figures."""
    words = [shlex.split(re.sub(r"\$\w+", "3", line)) for line in re.findall(r"fedtailor (run .*?)(?:;|$)", PAGE, re.M)]
    assert len(words) == 4
    for _, method, *rest in words:
        make_run(method, parse(word for word in rest[: rest.index("--out")] if word != "method.lam=3"))
    for name in re.findall(r"--figure ([a-z-]+)", PAGE):
        assert name in FIGURES


# --- the command ----------------------------------------------------------------------------------------------------


def test_the_list(call: Call) -> None:
    """With and without --list, every figure with what it needs."""
    answer = call("plot", "--list")
    assert answer == call("plot")
    assert answer.code == 0
    for name, figure in FIGURES.items():
        assert name in answer.out
        assert not figure.record or f"record={figure.record}" in answer.out


def test_all_that_the_records_allow(call: Call, folders: dict[str, Path]) -> None:
    """Into the run's folder; the rest is told, with the record that is lacking. The run can still be looked at."""
    answer = call("plot", str(folders["promptfl"]))
    assert answer.code == 0
    made = {path.stem for path in (folders["promptfl"] / "figures").glob("*.png")}
    assert made == {path.stem for path in (folders["promptfl"] / "figures").glob("*.csv")}
    assert made == set(FIGURES) - {"sweep", "tsne", "bandit", "branches", "pseudo-labels"}
    assert "bandit needs a run with record=bandit" in answer.err
    assert answer.out.count(".png") == len(made)
    shutil.rmtree(folders["promptfl"] / "figures")


def test_one_figure(call: Call, folders: dict[str, Path], tmp_path: Path) -> None:
    """Where --out says; a run that lacks the record is named, and left out."""
    answer = call("plot", str(folders["capt"]), str(folders["fedcopl"]), "--figure", "bandit", "--out", "b.svg")
    assert (answer.code, "one run, got 2" in answer.err) == (2, True)
    words = ["plot", str(folders["capt"]), str(folders["fedcopl"]), "--figure", "pseudo-labels", "--out", "new/p.svg"]
    answer = call(*words)
    assert (answer.code, answer.out) == (0, "new/p.svg new/p.csv\n")
    assert f"not in it, for want of a round or of its record: {folders['capt']}" in answer.err
    again = (tmp_path / "new/p.svg").read_bytes()
    call(*words)
    assert (tmp_path / "new/p.svg").read_bytes() == again  # the same records, the same file


def test_a_comparison(call: Call, small: dict[str, Any]) -> None:
    """Its folder stands for all runs in it; seeds are a line each with a band, zero-shot has no round."""
    words = [f"{key}={value}" for key, value in {**small, "rounds": 1}.items()]
    assert call("compare", "promptfl", *words, "--seeds", "2", "--out", "both", "-q").code == 0
    answer = call("plot", "both", "--figure", "curves")
    assert (answer.code, answer.out) == (0, "both/figures/curves.png both/figures/curves.csv\n")
    assert "zeroshot/seed-0" in answer.err
    with Path("both/figures/curves.csv").open() as text:
        rows = [row for row in csv.DictReader(text) if row["line"] == "promptfl"]
    assert {row["seeds"] for row in rows} == {"2"}
    assert call("compare", "--resume", "both", "-q").code == 0  # figures are in nobody's way


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["RUN", "--figure", "curvs"], "unknown figure 'curvs'; did you mean 'curves'? (fedtailor plot --list)"),
        (["RUN", "--figure", "curves", "--out", "a.jpg"], "a.jpg is neither .png nor .svg"),
        (["RUN", "--out", "a.png"], "without --figure it is a folder"),
        (["--figure", "curves"], "need a run folder to draw"),
        (["nowhere"], "nowhere is no run folder, nor is there one in it"),
        (["RUN", "--figure", "branches"], "branches needs a run with record=branches, which"),
        (["RUN", "--figure", "tsne"], "tsne needs general and class-aware prompts, as CAPT has;"),
        (["RUN", "--figure", "curves", "--out", "file/a.png"], "cannot write file/a.png: "),
    ],
)
def test_wrong_words(call: Call, folders: dict[str, Path], words: list[str], told: str) -> None:
    Path("file").write_text("in the way")
    answer = call("plot", *(str(folders["promptfl"]) if word == "RUN" else word for word in words))
    assert (answer.code, answer.out) == (2, "")
    assert told in answer.err
    assert "Traceback" not in answer.err


def test_damaged_and_unfinished(call: Call, folders: dict[str, Path]) -> None:
    """A line that is just being written does not count; a damaged file is told of; no round, no figure."""
    folder = shutil.copytree(folders["promptfl"], Path("going-on"))
    log = folder / "rounds.jsonl"
    log.write_text(log.read_text() + '{"round": 4, "glo')
    assert len(read_runs([folder])[0].rounds) == 3
    log.write_text("{\n")
    assert "rounds.jsonl is damaged" in call("plot", "going-on").err
    log.unlink()
    answer = call("plot", "going-on")
    assert (answer.code, "no round is recorded in going-on" in answer.err) == (2, True)
