"""`fedtailor predict`, `fedtailor evaluate` and `fedtailor.load`: a tuned model in use."""

from __future__ import annotations

import csv
import io
import json
import re
import shlex
import shutil
from contextlib import redirect_stdout
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import fedtailor
from conftest import Call
from fedtailor.base.errors import UserError
from fedtailor.cli import progress
from fedtailor.data import open_dataset
from fedtailor.data.datasets.files import spelled
from fedtailor.use.pictures import Pictures
from world import BRIEF, SMALL

Settings = dict[str, Any]


@pytest.fixture(scope="module")
def run(small: Settings, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One that has learned something, whose third client never took part, and that is calibrated."""
    out = tmp_path_factory.mktemp("runs") / "run"
    settings = {**small, "lr": 0.5, "fraction": 0.4, "rounds": 4, "every": 4, "epochs": 4, "calibrate": 0.2}
    fedtailor.run("promptfl", settings, out=out)
    return out


@pytest.fixture(scope="module")
def model(run: Path) -> fedtailor.TunedModel:
    return fedtailor.load(run)


@pytest.fixture
def photos(pictures: Path) -> list[Path]:
    return sorted((pictures / "test").rglob("*.png"))


# --- from Python ----------------------------------------------------------------------------------------------------


def test_predict(model: fedtailor.TunedModel, photos: list[Path]) -> None:
    """Broken: a prediction is not the likeliest class, or not of the picture that it names."""
    found, shares = model.predict(photos, top=2), model.probabilities(photos)
    assert [it.picture for it in found] == [str(path) for path in photos]
    assert shares.shape == (36, 3)
    assert np.allclose(shares.sum(1), 1, atol=1e-5)
    for it, row in zip(found, shares, strict=True):
        assert it.label == model.classes[int(row.argmax())]
        assert it.confidence == row.max()
        assert [p for _, p in it.classes] == sorted(row.tolist(), reverse=True)[:2]
    right = np.mean([it.label == Path(it.picture).parent.name.replace("_", " ") for it in found])
    assert right > 0.6  # three colours, a third by chance


def test_paths_and_pictures(model: fedtailor.TunedModel, photos: list[Path]) -> None:
    """Broken: a file and the same picture in memory, or one and a list of one, are answered differently."""
    by_path = model.probabilities(photos[:3])
    assert np.array_equal(by_path, model.probabilities([Image.open(path) for path in photos[:3]]))
    np.testing.assert_allclose(by_path[:1], model.probabilities(str(photos[0])), rtol=1e-5, atol=1e-6)
    grey = Image.open(photos[0]).convert("L")
    assert [it.picture for it in model.predict([grey, photos[0]])] == ["picture 0", str(photos[0])]


def test_whatever_the_batch(model: fedtailor.TunedModel, photos: list[Path]) -> None:
    """Broken: a picture's answer depends on those beside it, or one that cannot be read shifts the others."""
    whole = model.probabilities(photos)
    given = Pictures([Path("missing.png"), *photos[:7], Path("missing too.png"), *photos[7:]])
    answers = list(model.answers(given))
    assert np.concatenate([it.indices for it in answers]).tolist() == [i for i in range(38) if i not in (0, 8)]
    logits = torch.cat([it.logits for it in answers]) / model.temperature(None)
    np.testing.assert_allclose(logits.softmax(dim=1).numpy(), whole, rtol=1e-5, atol=1e-6)
    assert sorted(given.failed) == [0, 8]


def test_zero_shot(model: fedtailor.TunedModel, photos: list[Path], run: Path, small: Settings, tmp_path: Path) -> None:
    """Broken: CLIP as it is is asked with what was tuned, or is calibrated by what it was not."""
    fedtailor.run("zeroshot", small, out=tmp_path / "plain")
    plain = fedtailor.load(tmp_path / "plain").probabilities(photos)
    np.testing.assert_allclose(model.probabilities(photos, zero_shot=True), plain, rtol=1e-5, atol=1e-6)
    assert not np.allclose(model.probabilities(photos), plain, atol=1e-3)


def test_temperature(model: fedtailor.TunedModel, photos: list[Path]) -> None:
    """Broken: probabilities are not those of the fitted temperature, the shared model's or the clients'."""
    own = next(k for k in range(3) if model.has_own(k))
    other = next(k for k in range(3) if not model.has_own(k))
    fits = model.facts.calibration
    assert fits.shared is not None
    assert fits.personal is not None
    for client, fit in ((None, fits.shared), (own, fits.personal), (other, fits.shared)):
        logits = torch.cat([it.logits for it in model.answers(Pictures(photos), client)])
        wanted = (logits / fit.temperature).softmax(dim=1).numpy()
        assert np.array_equal(model.probabilities(photos, client), wanted)
        marked = [it.unsure for it in model.predict(photos, client)]
        assert marked == (wanted.max(1) < fit.unsure).tolist()


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (3, "pictures are paths or PIL images, or a list of them, got int"),
        ([3], "a picture is a path or a PIL image, got int"),
        (["missing.png"], "cannot read missing.png: there is no such file"),
        (["missing.png", Image.new("RGB", (4, 4))], "cannot read missing.png"),
    ],
)
def test_wrong_pictures(given: Any, told: str, model: fedtailor.TunedModel) -> None:
    """Broken: from Python, what is no picture is passed over or ends in a traceback."""
    with pytest.raises(UserError, match=told):
        model.predict(given)


def test_top_must_be_one(model: fedtailor.TunedModel) -> None:
    with pytest.raises(UserError, match="top=0: one class or more"):
        model.predict([], top=0)


# --- new classes ----------------------------------------------------------------------------------------------------


def tuned(method: str, small: Settings, tmp_path: Path, **more: Any) -> fedtailor.TunedModel:
    settings = {**small, **BRIEF.get(method, {}), "rounds": 1, **more}
    return fedtailor.load(fedtailor.run(method, settings, out=tmp_path / "run").folder or "")


@pytest.mark.parametrize(
    "method", ["promptfl", "capt", "fedpurel", "fedclip", "tailor", "fedtpg", "cocoop", "zeroshot"]
)
def test_further_classes(method: str, small: Settings, photos: list[Path], tmp_path: Path) -> None:
    """Broken: the classes that were learned are known less well beside a new one, or a new one cannot be found."""
    model = tuned(method, small, tmp_path)
    more = model.with_classes(["lynx"]).with_classes(["sea otter"])
    assert more.classes == (*model.classes, "lynx", "sea otter")
    for client in (None, 0):
        before = torch.cat([it.logits for it in model.answers(Pictures(photos), client)])
        after = torch.cat([it.logits for it in more.answers(Pictures(photos), client)])
        assert after.shape == (len(photos), 5)
        assert torch.isfinite(after).all()
        if method != "fedtpg":  # which writes the context from all names
            torch.testing.assert_close(after[:, :3], before, rtol=1e-4, atol=1e-4)
    assert len(model.classes) == 3


def test_rows_of_a_further_class(small: Settings, tmp_path: Path) -> None:
    """Broken: a new class's rows are not what CAPT begins from, the words of its recipe."""
    model = tuned(
        "capt", small, tmp_path, **{"tuner.class_prompt.words": "a photo of a", "tuner.class_prompt.length": 4}
    )
    grown = model.with_classes(["lynx"]).grown(model.shared)["class.ctx"]
    first = model.first(model.model)["class.ctx"]
    assert torch.equal(grown[:3], model.shared["class.ctx"])
    assert torch.equal(grown[3], first[0])
    assert not torch.equal(grown[0], first[0])


@pytest.mark.parametrize(
    ("method", "more", "name"),
    [
        ("linear-probe", {}, "head.weight"),
        ("scratch-fedavg", SMALL["resnet"], "head.weight"),
        ("pfedprompt", {}, "local.query.weight"),
    ],
)
def test_no_further_classes(method: str, more: Settings, name: str, small: Settings, tmp_path: Path) -> None:
    """Broken: a class that nothing was learned of is answered about all the same."""
    model = tuned(method, small, tmp_path, **more)
    with pytest.raises(UserError, match=f"{method} with tuner .* learned {name}.* from pictures of each class"):
        model.with_classes(["lynx"])


@pytest.mark.parametrize(
    ("names", "told"),
    [
        ("lynx", r"class names are a list, got 'lynx'; write \['lynx'\]"),
        ([], "class names must not be empty"),
        (["lynx", " "], "class names must not be empty"),
        (["Red_dot"], "the class 'Red_dot' is there already"),
        (["lynx", "Lynx"], "the class 'Lynx' is there already"),
    ],
)
def test_wrong_names(names: Any, told: str, model: fedtailor.TunedModel) -> None:
    with pytest.raises(UserError, match=told):
        model.with_classes(names)


# --- on the command line --------------------------------------------------------------------------------------------


def test_json(call: Call, run: Path, pictures: Path, model: fedtailor.TunedModel) -> None:
    """Broken: a script gets something else than Python does, or less than every picture of the folders."""
    folder = pictures / "test" / "red_dot"
    done = call("predict", str(run), str(folder), "--json", "--top", "2")
    found = json.loads(done.out)
    assert (done.code, done.err, found["by"], found["unread"]) == (0, "", "shared", [])
    paths = sorted(folder.iterdir())
    assert [it["picture"] for it in found["predictions"]] == [str(path) for path in paths]
    for it, wanted in zip(found["predictions"], model.predict(paths, top=2), strict=True):
        assert it["unsure"] == wanted.unsure
        assert [(c["class"], c["probability"]) for c in it["classes"]] == [(n, round(p, 6)) for n, p in wanted.classes]


def test_csv(call: Call, run: Path, photos: list[Path]) -> None:
    """Broken: a spreadsheet cannot read it."""
    done = call("predict", str(run / "model"), *map(str, photos[:2]), "--csv", "--top", "3")
    rows = list(csv.DictReader(io.StringIO(done.out)))
    assert done.code == 0
    assert [(row["picture"], row["rank"]) for row in rows] == [(str(p), str(r)) for p in photos[:2] for r in (1, 2, 3)]
    assert sum(float(row["probability"]) for row in rows) == pytest.approx(2, abs=1e-4)


def test_table(call: Call, run: Path, photos: list[Path], model: fedtailor.TunedModel, tmp_path: Path) -> None:
    """Broken: the table lacks a picture's name or class, or marks the wrong ones as unsure."""
    for i, path in enumerate(photos):
        shutil.copy(path, tmp_path / f"photo{i}[b].png")
    done = call("predict", str(run), ".", "--unsure", "--top", "1")
    assert done.code == 0
    lines = {line.split("│")[1].strip(): line for line in done.out.splitlines() if ".png" in line}
    assert len(lines) == len(photos)
    for i, it in enumerate(model.predict(photos)):
        cells = [cell.strip() for cell in lines[f"photo{i}[b].png"].split("│")[2:5]]
        assert cells == [it.label, f"{100 * it.confidence:.1f}", "no" if it.unsure else "yes"]


def test_a_client(call: Call, run: Path, photos: list[Path], model: fedtailor.TunedModel) -> None:
    """Broken: a client's own model is not asked, or the shared one in its place without a word."""
    own = next(k for k in range(3) if model.has_own(k))
    other = next(k for k in range(3) if not model.has_own(k))
    given = call("predict", str(run), str(photos[0]), "--client", f"client {own}", "--json")
    (it,) = json.loads(given.out)["predictions"]
    (wanted,) = model.predict(photos[0], client=own)
    assert it["classes"][0]["probability"] == round(wanted.confidence, 6)
    done = call("predict", str(run), str(photos[0]), "--client", str(other))
    assert f"client {other} has no parameters of its own: this is the shared model" in done.err
    notes = json.loads(call("predict", str(run), str(photos[0]), "--client", str(other), "--json").out)["notes"]
    assert notes == [f"client {other} has no parameters of its own: this is the shared model"]


def test_unreadable(call: Call, run: Path, photos: list[Path], tmp_path: Path) -> None:
    """Broken: one bad file ends the work on the others, or a run without any answer looks like one that went well."""
    bad = tmp_path / "bad.jpg"
    bad.write_text("no picture")
    some = call("predict", str(run), str(bad), str(photos[0]), "missing.png", "--json")
    found = json.loads(some.out)
    assert some.code == 0
    assert [it["picture"] for it in found["predictions"]] == [str(photos[0])]
    assert [it["picture"] for it in found["unread"]] == [str(bad), "missing.png"]
    assert "cannot read" in some.err
    assert "cannot read missing.png: there is no such file" in some.err
    none = call("predict", str(run), str(bad))
    assert (none.code, none.out) == (2, "")
    assert "none of 1 pictures could be read" in none.err


def test_further_classes_by_name(call: Call, run: Path, photos: list[Path]) -> None:
    done = call("predict", str(run), str(photos[0]), "--classes", "lynx, sea otter", "--json")
    (it,) = json.loads(done.out)["predictions"]
    assert {"lynx", "sea otter"} < {c["class"] for c in it["classes"]}


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--client", "bob"], "there is no client 'bob'; clients are 0 to 2, by name client 0, client 1, client 2"),
        (["--client", "3"], "there is no client '3'"),
        (["--csv", "--json"], "--csv and --json are given; choose one"),
        (["--zero-shot", "--unsure"], "--unsure needs a calibrated model"),
        (["--classes", "lynx,"], "class names must not be empty"),
        (["--backbone", "bundled"], "its parameters fit no other"),
    ],
)
def test_wrong_words(words: list[str], told: str, call: Call, run: Path, photos: list[Path]) -> None:
    done = call("predict", str(run), str(photos[0]), *words)
    assert done.code == 2
    assert told in done.err


@pytest.mark.parametrize(
    ("make", "told"),
    [
        ("", "is not a folder; give a run folder"),
        ("empty", "has no model.json; give a run folder"),
        ("begun", "is not finished; go on with it: fedtailor run --resume"),
        ("old", "has no model/: it was run before there were any"),
    ],
)
def test_wrong_model(make: str, told: str, call: Call, photos: list[Path], tmp_path: Path) -> None:
    folder = tmp_path / "given"
    if make:
        folder.mkdir()
    for name in {"begun": ["run.toml"], "old": ["run.toml", "result.json"]}.get(make, []):
        (folder / name).write_text("")
    done = call("predict", str(folder), str(photos[0]))
    assert done.code == 2
    assert told in done.err.replace("\n", " ")


def test_an_empty_folder(call: Call, run: Path, tmp_path: Path) -> None:
    (tmp_path / "none").mkdir()
    done = call("predict", str(run), str(tmp_path / "none"))
    assert done.code == 2
    assert "has no pictures in it; their names must end in" in done.err


@pytest.mark.parametrize(("after", "times"), [(0.01, 1), (60.0, 0)])
def test_bars_come_late(after: float, times: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Broken: a bar flickers for a second's work, or does not come for long work."""
    monkeypatch.setattr(progress.Late, "AFTER", after)
    late, begun = progress.Late(enabled=True), Event()
    monkeypatch.setattr(late.bars, "start", begun.set)
    with late:
        late.on_progress("looking at pictures", 0, 100)
        assert begun.wait(5.0 if times else 0.1) == bool(times)


# --- evaluate -------------------------------------------------------------------------------------------------------


def test_evaluate(call: Call, run: Path, pictures: Path) -> None:
    """Broken: the run's own test set gives other numbers than the run did."""
    result = json.loads((run / "result.json").read_text())
    done = call("evaluate", str(run), str(pictures), "--json")
    found = json.loads(done.out)
    assert (done.code, found["pictures"]) == (0, 36)
    for ours, theirs in (("tuned", "global"), ("zero_shot", "zero_shot")):
        assert {name: value and round(value, 4) for name, value in found[ours].items()} == result[theirs]
    rows = [json.loads(line) for line in (run / "rounds.jsonl").read_text().splitlines()]
    assert {name: it["tuned"] for name, it in found["per_class"].items()} == rows[-1]["global"]["per_class"]


def test_evaluate_page(call: Call, run: Path, pictures: Path, tmp_path: Path) -> None:
    """Broken: an undivided folder is not measured whole, or classes are not matched by name."""
    for name in ("red_dot", "Blue dot"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for path in sorted((pictures / "test" / name.lower().replace(" ", "_")).iterdir())[:6]:
            shutil.copy(path, tmp_path / "photos" / name)
    done = call("evaluate", str(run), "photos")
    assert done.code == 0, done.err
    assert "12 pictures · expected calibration error" in done.out
    lines = [line for line in done.out.splitlines() if "dot" in line]
    assert [line.split("│")[1:3] for line in lines] == [[" blue dot ", "        6 "], [" red dot  ", "        6 "]]


@pytest.mark.parametrize("form", ["Testing", "valid", "table"])
def test_evaluate_the_test_part(form: str, call: Call, run: Path, pictures: Path, tmp_path: Path) -> None:
    """Broken: a test part under another name, or told by a table, is measured together with training pictures."""
    root = tmp_path / "mine"
    shutil.copytree(pictures, root)
    given = "mine"
    if form == "table":
        files = sorted(path.relative_to(root) for path in root.rglob("*.png"))
        lines = [f"{path},{path.parts[1]},{path.parts[0]}" for path in files]
        (root / "list.csv").write_text("\n".join(["path,label,split", *lines]))
        given = "mine/list.csv"
    else:
        (root / "test").rename(root / form)
    assert json.loads(call("evaluate", str(run), given, "--json").out)["pictures"] == 36


def test_evaluate_strangers(call: Call, run: Path, pictures: Path, tmp_path: Path) -> None:
    """Broken: pictures of a class that the model does not know count as wrong, or as another class."""
    shutil.copytree(pictures / "test", tmp_path / "photos")
    (tmp_path / "photos/red_dot").rename(tmp_path / "photos/violet")
    done = call("evaluate", str(run), "photos")
    assert done.code == 2
    told = done.err.replace("\n", " ")
    assert "does not know: violet; it knows blue dot, green dot, red dot. Rename the folders" in told
    assert call("evaluate", str(run), "photos", "--classes", "violet").code == 0


def test_evaluate_needs_whole_pictures(call: Call, run: Path, pictures: Path, tmp_path: Path) -> None:
    """Broken: a measurement quietly leaves pictures out."""
    shutil.copytree(pictures / "test", tmp_path / "photos")
    (tmp_path / "photos/red_dot/00.png").write_text("no picture")
    done = call("evaluate", str(run), "photos")
    assert done.code == 2
    assert "cannot read photos/red_dot/00.png" in done.err
    unlabelled = call("evaluate", str(run), "photos/red_dot")
    assert unlabelled.code == 2


# --- the page -------------------------------------------------------------------------------------------------------


def test_the_page(call: Call, tmp_path: Path) -> None:
    """Broken: a command or a line of docs/using.md does not work as written. One run, on drawn pictures."""
    page = (Path(__file__).parent.parent / "docs/using.md").read_text()
    drawn = open_dataset("drawn-lt")
    for name, i in (("one", 0), ("two", 60)):
        folder = tmp_path / "photos" / spelled(drawn.classes[int(np.asarray(drawn.test.labels)[i])])
        folder.mkdir(parents=True, exist_ok=True)
        picture = Image.fromarray(drawn.test.images.read(i))
        picture.save(folder / f"{name}.png")
    (commands,) = re.findall(r"```bash\n(.*?)```", page, re.DOTALL)
    for command in commands.splitlines():
        done = call(*shlex.split(command)[1:])
        assert done.code == 0, (command, done.err)
        assert done.out.strip()
    for path in list((tmp_path / "photos").rglob("*.png")):
        path.rename(tmp_path / "photos" / path.name)
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    printed = io.StringIO()
    with redirect_stdout(printed):
        exec(compile(code, "using", "exec"), {})
    assert "(1, 40) 40" in printed.getvalue()
