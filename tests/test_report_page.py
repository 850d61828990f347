"""`fedtailor report`: what is on the page is what is on record, and nothing of it comes from elsewhere."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedtailor
from conftest import Call
from fedtailor.base.documents import sealed
from fedtailor.base.errors import UserError
from fedtailor.evaluation.metrics import METRICS
from fedtailor.report.comparison import blocks, difference_blocks
from fedtailor.report.page import render
from fedtailor.report.page.charts import Line, Point, draw, ticks
from fedtailor.report.page.side_by_side import leading
from fedtailor.runs.page import read_page
from fedtailor.runs.predictions import read_predictions
from pages import CLASSES, SITES, Page, numbers, shown
from run_content import read


def rounds(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]


def page_of(*folders: Path, pictures: bool = False) -> Page:
    return Page(render(read_page(folders, pictures)))


@pytest.fixture(scope="module")
def text(strange: Path) -> str:
    return render(read_page([strange / "one"]))


@pytest.fixture(scope="module")
def page(text: str) -> Page:
    return Page(text)


# --- numbers --------------------------------------------------------------------------------------------------------


def test_scores(page: Page, strange: Path) -> None:
    """Before and after, as result.json has them."""
    result = json.loads((strange / "one" / "result.json").read_text())
    rows = {row[0]: row[1:] for row in page.tables["run-1-scores"]}
    known = [name for name in METRICS if result["global"][name] is not None]
    assert rows["model"] == [METRICS[name].heading for name in known]
    for row, key in (("global zero-shot", "zero_shot"), ("personal promptfl", "personal")):
        assert numbers(rows[row]) == shown([result[key][name] for name in known])
    gains = [result["global"][name] - result["zero_shot"][name] for name in known]
    assert numbers(rows["global gain"]) == shown(gains)
    assert f"{result['global']['overall']:.2f} %" in page.text("section", id="run-1-summary")


def test_classes(page: Page, strange: Path) -> None:
    """Each class by name, the most frequent first, with its pictures and accuracies."""
    data, last = json.loads((strange / "one" / "data.json").read_text()), rounds(strange / "one")[-1]
    order = [data["classes"].index(name) for name in page.column("run-1-classes", "class")]
    train = np.array(data["counts"]).sum(0)
    assert sorted(order) == [0, 1, 2]
    assert numbers(page.column("run-1-classes", "train")) == [float(train[c]) for c in order]
    assert numbers(page.column("run-1-classes", "test")) == [8.0, 8.0, 8.0]
    for part in ("global", "personal"):
        after = numbers(page.column("run-1-classes", f"{part} tuned"))
        assert after == shown([last[part]["per_class"][data["classes"][c]] for c in order])
        before = numbers(page.column("run-1-classes", f"{part} zero-shot"))
        assert before == shown([data["zero_shot"][part]["per_class"][data["classes"][c]] for c in order])


def test_sites(page: Page, strange: Path) -> None:
    """Each site by name: what it holds, and how its own model and the shared one do on its pictures."""
    data, last = json.loads((strange / "one" / "data.json").read_text()), rounds(strange / "one")[-1]
    assert page.column("run-1-sites", "client") == data["clients"] == sorted(SITES)
    assert numbers(page.column("run-1-sites", "train")) == [float(sum(row)) for row in data["counts"]]
    assert numbers(page.column("run-1-sites", "own model")) == shown(
        [last["clients"][name] for name in data["clients"]]
    )
    assert page.column("run-1-sites", "rounds") == ["2", "2"]
    said = read_predictions(strange / "one")
    assert said is not None
    right = said.shared[said.picture] == said.label[said.picture]
    shared = [100 * float(right[said.owner == k].mean()) for k in range(2)]
    assert numbers(page.column("run-1-sites", "shared model")) == shown(shared)


def test_matrices(page: Page, strange: Path) -> None:
    """In the order of the table of classes: who holds what, and what was taken for what, in percent of a class."""
    data, said = json.loads((strange / "one" / "data.json").read_text()), read_predictions(strange / "one")
    assert said is not None
    order = [data["classes"].index(name) for name in page.column("run-1-classes", "class")]
    assert page.grid("run-1-holdings") == [[str(row[c]) for c in order] for row in data["counts"]]
    for part, true, guess in (
        ("global", said.label, said.shared),
        ("personal", said.label[said.picture], said.personal),
    ):
        for found, c in zip(page.grid(f"run-1-{part}-matrix"), order, strict=True):
            shares = [100 * float(np.mean(guess[true == c] == other)) for other in order]
            assert found == [f"{share:.0f}" if share >= 1 else "<1" if share else "0" for share in shares]
        pairs = page.tables[f"run-1-{part}-pairs"][1:]
        assert sum(int(row[2]) for row in pairs) == int((true != guess).sum())


def test_curves(page: Page, strange: Path) -> None:
    """Round 0 is zero-shot CLIP; the numbers are below, and every mark says its own."""
    found = [[row[part]["overall"] for row in rounds(strange / "one")] for part in ("global", "personal")]
    for part, values in zip(("global", "personal"), found, strict=True):
        assert numbers(page.column("run-1-tests", f"{part} overall"))[1:] == shown(values)
    marks = [text for i, text in page.texts.items() if page.elements[i][0] == "title"]
    assert f"overall, round 2: {found[0][-1]:.2f}" in marks
    assert any(mark.startswith("overall, zero-shot: ") for mark in marks)


def test_costs_and_settings(page: Page, strange: Path) -> None:
    cost, settings = page.tables["run-1-cost"], dict(page.tables["run-1-settings"])
    sent = sum(row["bytes_up"] for row in rounds(strange / "one"))
    assert cost[1] == ["sent up by all clients", f"{sent / 1000:.1f} kB", f"{sent // 2} B"]
    assert (settings["rounds"], settings["lr"], settings["data.broken"]) == ("2", "0.05", "error")


# --- whatever the names ---------------------------------------------------------------------------------------------


def test_names_are_only_names(page: Page, text: str) -> None:
    """Broken: a class or a site becomes a part of the page."""
    assert [tag for tag, _ in page.elements].count("script") == 1
    assert not page.all("img")
    assert not [found for _, found in page.elements if any(key.startswith("on") for key in found)]
    assert sorted(page.column("run-1-classes", "class")) == sorted(CLASSES)
    assert text.count("<script") == 1


def test_nothing_comes_from_elsewhere(page: Page, text: str) -> None:
    """No address but places on the page; style and script are allowed by their hashes, all else is forbidden."""
    assert not re.search(r"(https?:)?//\w+\.\w+", text.partition("<body>")[2])
    for tag, found in page.elements:
        for key in ("src", "href", "srcset", "action", "data", "poster"):
            assert found.get(key, "#").startswith("#"), (tag, found)
        assert "style" not in found  # which the policy would not allow
    policy = page.all("meta", http_equiv="Content-Security-Policy")[0]["content"]
    for kind in ("style", "script"):
        body = re.findall(rf"<{kind}>(.*?)</{kind}>", text, re.DOTALL)[0]
        digest = base64.b64encode(hashlib.sha256(body.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none'")


def test_ids_and_links(strange: Path) -> None:
    """Each id once; every link leads somewhere on the page."""
    page = page_of(strange / "one", strange / "two")
    ids = page.ids()
    assert len(ids) == len(set(ids))
    assert {found["href"] for found in page.all("a")} <= {f"#{name}" for name in ids}


# --- what is not there ----------------------------------------------------------------------------------------------


def stopped(folder: Path, to: Path, *without: str) -> Path:
    copy = shutil.copytree(folder, to)
    for name in ("result.json", "predictions.safetensors", *without):
        (copy / name).unlink()
    return copy


def test_unfinished(strange: Path, tmp_path: Path) -> None:
    """A page of what there is, which says so; a line that is just being written does not count."""
    folder = stopped(strange / "one", tmp_path / "run", "checkpoint.json")
    log = folder / "rounds.jsonl"
    log.write_text(log.read_text().splitlines()[0] + '\n{"round": 2, "glo')
    page = page_of(folder)
    assert "This run is not finished: 1 of 2 rounds" in page.text("section", id="run-1-notes")
    row = rounds(strange / "one")[0]
    assert numbers(page.column("run-1-sites", "own model")) == shown([row["clients"][name] for name in sorted(SITES)])
    assert f"{row['global']['overall']:.2f} %" in page.text("section", id="run-1-summary")
    assert "run-1-confusion" not in page.ids()


def test_nothing_but_settings(strange: Path, tmp_path: Path) -> None:
    """A run that was ended before its first round."""
    page = page_of(stopped(strange / "one", tmp_path / "begun", "rounds.jsonl", "data.json"))
    assert "not finished: 0 of 2 rounds" in page.text("main")
    assert "run-1-curves" not in page.ids()
    assert page.column("run-1-sites", "client") == ["0", "1"]


def test_notes(strange: Path, tmp_path: Path) -> None:
    """Who never took part, by name; what was noted; what was left out."""
    folder = shutil.copytree(strange / "one", tmp_path / "run")
    changed = {**read(folder / "result.json"), "never_took_part": sorted(SITES)[1:], "notes": ["<b>a note</b>"]}
    (folder / "result.json").write_bytes(sealed(changed))
    (folder / "data.json").write_bytes(sealed({**read(folder / "data.json"), "broken": 3}))
    told = page_of(folder).text("section", id="run-1-notes")
    assert f"1 client(s) never took part ({sorted(SITES)[1]})" in told
    assert "<b>a note</b>" in told
    assert "3 picture(s) could not be read" in told


def test_damaged(strange: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(strange / "one", tmp_path / "run")
    (folder / "result.json").write_text("{")
    with pytest.raises(UserError, match=r"result\.json is damaged"):
        read_page([folder])


# --- several --------------------------------------------------------------------------------------------------------


def test_several_runs(strange: Path) -> None:
    """Side by side: compared, in one chart, in one list, and each for itself."""
    page, found = page_of(strange), read_page([strange])
    assert found.comparison is not None
    made = [*blocks(dict(found.comparison)), *difference_blocks(dict(found.comparison))]
    for i, block in enumerate(made, 1):
        assert page.tables[f"block-{i}"] == [
            ["row", *block.columns],
            *([title, *(cell.text for cell in cells)] for title, cells in block.lines),
        ]
    assert [row[0] for row in page.tables["runs"][1:]] == ["one", "two"]
    assert [row[1:] for row in page.tables["differ"][1:]] == [["promptfl"], ["fedavg"]]
    assert {"run-1-classes", "run-2-classes", "run-2-global-matrix"} <= set(page.ids())
    assert next(text for i, text in page.texts.items() if page.elements[i][0] == "figcaption") == "global, overall"


def test_one_that_is_not_finished(strange: Path, tmp_path: Path) -> None:
    """Is shown, and left out of the comparison."""
    shutil.copytree(strange, tmp_path / "runs")
    toml = stopped(strange / "two", tmp_path / "runs" / "three") / "run.toml"
    toml.write_text(toml.read_text().replace("seed = 0", "seed = 5", 1))
    page = page_of(tmp_path / "runs")
    assert "Not in the comparison, since they are not finished: " in page.text("main")
    assert len(page.tables["runs"]) == 4
    assert len(page.tables["block-1"]) == 3


def test_a_comparison(small: dict[str, Any], tmp_path: Path) -> None:
    """Its folder has a table already, with seeds in one row; the page has that."""
    fedtailor.compare(["promptfl"], {**small, "rounds": 1}, seeds=2, out=tmp_path / "both")
    page = page_of(tmp_path / "both")
    summary = json.loads((tmp_path / "both" / "table.json").read_text())
    assert page.tables["block-1"][1][1:] == [cell.text for cell in blocks(summary)[0].lines[0][1]]
    assert "±" in page.tables["block-1"][2][1]
    assert [row[0] for row in page.tables["runs"][1:]] == [
        f"{row}/seed-{seed}" for row in ("promptfl", "zeroshot") for seed in (0, 1)
    ]


# --- pictures -------------------------------------------------------------------------------------------------------


def test_pictures_only_when_asked(page: Page, strange: Path) -> None:
    """Broken: a page that is passed on has pictures that nobody meant to pass on."""
    assert not page.all("img")
    said = read_predictions(strange / "one")
    assert said is not None
    wrong = int((said.shared != said.label).sum())
    with_them = page_of(strange / "one", pictures=True)
    assert f"{wrong:,} of 24 answers of the shared model are wrong" in with_them.text("section", id="run-1-worst")
    found = with_them.all("img")
    assert len(found) == min(wrong, 24) > 0
    assert all(it["src"].startswith("data:image/png;base64,") for it in found)
    assert {it["alt"].removeprefix("a test picture of ") for it in found} <= set(CLASSES)


def test_pictures_of_other_data(strange: Path, tmp_path: Path) -> None:
    """Broken: pictures are shown that the run was not tested on."""
    folder = shutil.copytree(strange / "one", tmp_path / "run")
    toml = folder / "run.toml"
    toml.write_text(re.sub(r'test_data = "\w+"', 'test_data = "0"', toml.read_text()))
    with pytest.raises(UserError, match="the test pictures here are not those of the run"):
        page_of(folder, pictures=True)


# --- shapes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("low", "high", "whole", "wanted"),
    [
        (60.2, 77.1, False, [60, 65, 70, 75, 80]),
        (0, 0, False, [0, 0.25, 0.5, 0.75, 1]),
        (0, 3, True, [0, 1, 2, 3]),
        (0, 40, True, [0, 10, 20, 30, 40]),
    ],
)
def test_ticks(low: float, high: float, whole: bool, wanted: list[float]) -> None:
    assert ticks(low, high, whole) == wanted


def test_a_line() -> None:
    """Left to right, and a higher number higher up; a band where there are several seeds."""
    chart = draw("it", [Line("a", 0, [Point(0, 50), Point(2, 60, 2.0)])])
    (line,) = chart.lines
    (x0, y0), (x1, y1) = ([float(n) for n in spot.split()] for spot in line.path[1:].split("L"))
    assert x0 < x1
    assert y0 > y1
    assert line.band.endswith("z")
    assert [said for _, said in line.marks] == ["a, zero-shot: 50.00", "a, round 2: 60.00 ± 2.00"]
    assert chart.told == "a from 50.0 to 60.0"


@pytest.mark.parametrize(
    ("cell", "value"), [("76.65±0.31", 76.65), ("-1.20±0.30*", -1.2), ("12.3 kB", 12300), ("–", None), ("", None)]
)
def test_cells_sort_by_their_number(cell: str, value: float | None) -> None:
    assert leading(cell) == value


# --- the command ----------------------------------------------------------------------------------------------------


def test_the_command(call: Call, strange: Path, tmp_path: Path) -> None:
    """Where --out says; else in the run's folder, where it is in nobody's way."""
    folder = shutil.copytree(strange / "one", tmp_path / "run")
    assert call("report", str(folder), "-o", "new/page.html").out == "new/page.html\n"
    assert "<h1>promptfl on csv:" in Path("new/page.html").read_text()
    assert call("report", str(folder)).out == f"{folder / 'report.html'}\n"
    assert call("report", str(folder), str(strange / "two")).out == "report.html\n"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["nowhere"], "nowhere is no run folder, nor is there one in it"),
        (["RUN", "-o", "page.pdf"], "page.pdf does not end in .html; --out takes a page"),
        (["RUN", "-o", "file/page.html"], "cannot write file/page.html: "),
    ],
)
def test_wrong_words(call: Call, strange: Path, words: list[str], told: str) -> None:
    Path("file").write_text("in the way")
    answer = call("report", *(str(strange / "one") if word == "RUN" else word for word in words))
    assert (answer.code, answer.out) == (2, "")
    assert told in answer.err
