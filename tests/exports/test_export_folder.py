"""`fedtailor export`: a folder that is whole or not there, refusals that say why, and the page that tells who can."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors import SafetensorError
from torch import Tensor

import fedtailor
from conftest import Call
from fedtailor.base.errors import UserError
from fedtailor.exports import FORMATS
from fedtailor.exports.classifier import ClassifierMatrix
from fedtailor.exports.export import can_be
from fedtailor.exports.source import Source
from fedtailor.methods import METHODS
from fedtailor.tuners import TUNERS
from world import JOINS, world

PAGE = Path(__file__).parents[2] / "docs/exporting.md"


@pytest.fixture
def promptfl(model_of: Any) -> str:
    return str(model_of("promptfl", "text_prompt", calibrated=True))


def test_the_command(call: Call, promptfl: str, tmp_path: Path) -> None:
    done = call("export", promptfl, "--to", "classifier", "--out", "new/mine", "--client", "north")
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("new/mine: north's own model, for classifier\n")
    assert "classify.py" in done.out
    assert re.search(r"logits differ by at most \d\.\de-\d\d \(max difference\)\n$", done.out)
    files = {path.name for path in (tmp_path / "new/mine").iterdir()}
    assert files == {"README.md", "classifier.safetensors", "classify.py", "export.json", "image_tower.safetensors"}
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["mine"]


def test_for_programs(call: Call, promptfl: str, tmp_path: Path) -> None:
    """Broken: JSON is not alone on stdout, or does not tell that a client has no model of its own."""
    (tmp_path / "empty").mkdir()
    done = call("export", promptfl, "--to", "transformers", "--out", "empty", "--client", "1", "--json")
    told = json.loads(done.out)
    assert (told["to"], told["by"], told["folder"]) == ("transformers", "1", "empty")
    assert told["files"].keys() == {path.name for path in (tmp_path / "empty").iterdir()}
    assert 0 <= told["max_difference"] < 1e-4
    assert told["notes"][0] == "south has no parameters of its own: this is the shared model"


def test_the_card_and_the_facts(promptfl: str, clips: dict[str, Path], tmp_path: Path) -> None:
    """Broken: the card lacks the CLIP, the format or the calibration, tells a path, or does not warn of a client's."""
    done = fedtailor.export(promptfl, "classifier", tmp_path / "out", client="north")
    card, facts = (done.folder / "README.md").read_text(), json.loads((done.folder / "export.json").read_text())
    name = clips["vit"].name
    assert card.startswith(f"# promptfl on {name}, for classifier\n")
    assert f"made from the CLIP {name}, whose weights have the hash {facts['clip']['hash'][:12]}" in card
    assert "learned from one client's pictures" in card
    assert "Divide logits by 1.5 before a softmax" in card
    assert str(clips["vit"].parent) not in card + json.dumps(facts)
    assert (facts["temperature"], facts["unsure_below"], facts["client"]) == (1.5, 0.3, "north")
    assert {"## Classes", "## Trained on", "## Scores", "## Calibration", "## How it works"} <= set(card.splitlines())


WRONG = {
    "unknown format 'onx'; did you mean 'onnx'?": ("--to", "onx"),
    "cannot be exported to peft: it has no low-rank deltas (tuner lora has); it can be exported to transformers, "
    "open_clip, classifier, onnx": ("--to", "peft"),
    "there is no client 'west'; clients are 0 to 1, by name north, south": ("--to", "peft", "--client", "west"),
    "there is no such folder or .safetensors file": ("--to", "classifier", "--backbone", "nowhere"),
}


@pytest.mark.parametrize("why", WRONG)
def test_wrong_input(call: Call, promptfl: str, tmp_path: Path, why: str) -> None:
    done = call("export", promptfl, *WRONG[why], "--out", "out")
    assert done.code == 2
    assert why in done.err
    assert not list(tmp_path.iterdir())


def test_an_existing_folder_is_refused(call: Call, promptfl: str, tmp_path: Path) -> None:
    """Broken: something that somebody has is overwritten."""
    (tmp_path / "out").mkdir()
    (tmp_path / "out/letter").write_text("dear")
    (tmp_path / "file").write_text("dear")
    for name in ("out", "file"):
        done = call("export", promptfl, "--to", "classifier", "--out", name)
        assert (done.code, "is there already, and not an empty folder" in done.err) == (2, True)
    assert {path.name for path in tmp_path.rglob("*")} == {"out", "letter", "file"}


@pytest.mark.parametrize("fault", ["write", "save", "answer"])
def test_whole_or_not_at_all(promptfl: str, tmp_path: Path, fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Broken: a folder stays that is half written, or one that answers otherwise than fedtailor is let through."""

    def full(self: ClassifierMatrix, folder: Path) -> None:
        (folder / "half").write_text("half")
        raise (OSError if fault == "write" else SafetensorError)("No space left on device")

    right = ClassifierMatrix.answer

    def wrong(self: ClassifierMatrix, folder: Path, pixels: Tensor) -> Tensor:
        return right(self, folder, pixels) + 1e-2

    monkeypatch.setattr(ClassifierMatrix, *(("answer", wrong) if fault == "answer" else ("write", full)))
    space = "nothing is kept: No space left"
    why = {"write": space, "save": space, "answer": "logits differ by .* more than 0.0001"}
    with pytest.raises(UserError, match=why[fault]):
        fedtailor.export(promptfl, "classifier", tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_somebody_elses_part(promptfl: str, tmp_path: Path) -> None:
    """Broken: what another export is writing, or what a user has under that name, is removed."""
    (tmp_path / "out.part").mkdir()
    (tmp_path / "out.part/letter").write_text("dear")
    with pytest.raises(UserError, match=r"out\.part is there: of an export that goes on"):
        fedtailor.export(promptfl, "classifier", tmp_path / "out")
    with pytest.raises(UserError, match=r"cannot write .*letter/out"):
        fedtailor.export(promptfl, "classifier", tmp_path / "out.part/letter/out")
    assert (tmp_path / "out.part/letter").read_text() == "dear"


def test_what_is_missing_is_told(promptfl: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedtailor.exports.onnx.NEEDED", ("onnx", "no_such_package"))
    with pytest.raises(UserError, match=r"ONNX needs no_such_package: pip install 'fedtailor\[export\]'"):
        fedtailor.export(promptfl, "onnx", tmp_path / "out")


# --- the page -------------------------------------------------------------------------------------------------------


def possible(method: str, tuner: str) -> dict[str, str]:
    """What can be made of the shared model and of a client's, by format; parameters are random."""
    text = {"method.against": "text"} if method == "capt-released" else {}  # its prompts are wider than features here
    job = world(method, tuner, **text).job
    rng = torch.Generator().manual_seed(0)
    theta = {name: value + 0.1 * torch.randn(value.shape, generator=rng) for name, value in job.start.items()}
    tuned: Any = SimpleNamespace(method=job.method, model=job.model, backbone=job.model)
    asked = {"shared": job.method.predict_shared, "own": job.method.predict}
    found = {whose: Source(tuned, None, theta, ask) for whose, ask in asked.items()}
    able = {to: [whose for whose, source in found.items() if can_be(source, to)] for to in FORMATS}
    return {to: {2: "yes", 1: "/".join(whose), 0: "–"}[len(whose)] for to, whose in able.items()}


def rows(first: str) -> Iterator[tuple[str, dict[str, str]]]:
    """Of the page's table with this first column."""
    for part in PAGE.read_text().split("\n\n"):
        lines = [[cell.strip(" `") for cell in line.split("|")[1:-1]] for line in part.splitlines() if line[:1] == "|"]
        if lines and lines[0][0] == first:
            for name, *cells in lines[2:]:
                yield name, dict(zip(lines[0][1:], cells, strict=True))


def test_the_page_knows_what_each_method_can_become() -> None:
    told = dict(rows("method"))
    assert told == {name: {"tuner": e.tuner, **possible(name, e.tuner)} for name, e in METHODS.items()}


def test_the_page_knows_what_each_tuner_can_become() -> None:
    told = dict(rows("tuner"))
    tuners = [*(name for name in TUNERS if name != "none"), *JOINS]
    assert told == {tuner: possible("fedavg", tuner) for tuner in tuners}


def test_two_branches_are_one_matrix_or_two_towers() -> None:
    """FedPuReL's personal model adds two branches: one matrix if they differ in sentences, no one tower if not."""
    assert possible("fedpurel", "text_prompt")["classifier"] == "yes"
    for tuner in ("lora", "adapter", "visual_prompt"):
        assert possible("fedpurel", tuner)["classifier"] == "shared"


def test_commands_of_the_page(call: Call, promptfl: str, model_of: Any, tmp_path: Path) -> None:
    """Broken: a command or line of Python in docs/exporting.md does not work as written (ONNX has its own tests)."""
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs/mine").symlink_to(model_of("clip-lora", "lora"))
    (block,) = re.findall(r"```bash\n(.*?)```", PAGE.read_text(), re.DOTALL)
    commands = [line.split()[1:] for line in block.splitlines() if "onnx" not in line]
    assert len(commands) == 4
    for words in commands:
        done = call(*words)
        assert done.code == 0, (words, done.err)
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    exec(compile(code.replace('"onnx"', '"classifier"'), str(PAGE), "exec"), {})
