"""Exports, each read by its library, answer as `fedtailor.load` does: equal logits to 1e-4, on a picture too."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor

import fedtailor
from conftest import Call
from export_models import TEMPLATE
from fedtailor.clip.layouts import to_openai
from fedtailor.clip.load import load
from fedtailor.clip.model import Clip
from fedtailor.exports import FORMATS
from fedtailor.exports.source import Source
from fedtailor.use.pictures import Pictures
from tiny import RESNET, VIT
from world import NAMES

ALL = {"tuner.matrices": "qkvo"}
CLOSE: dict[str, float] = {"rtol": 1e-4, "atol": 1e-4}
by_client = pytest.mark.parametrize("client", [None, "north"])


def pixels(*batch: int) -> Tensor:
    return torch.randn(*batch, 3, 32, 32, generator=torch.Generator().manual_seed(7))


def ours(model: Path, client: str | None, x: Tensor) -> Tensor:
    """(B, C) logits of a model folder, by the way that `predict` takes: as far as the tuner's stage, then on."""
    tuned = fedtailor.load(model)
    with torch.no_grad():
        return tuned.logits_of(client)(tuned.model.clip.vision(x, "pixels", tuned.model.stage))


def usage(folder: Path, **names: Any) -> dict[str, Any]:
    """What the card's first piece of Python leaves behind, run as it is written there."""
    code = re.findall(r"```python\n(.*?)```", (folder / "README.md").read_text(), re.DOTALL)[0]
    exec(compile(code, str(folder), "exec"), names := {"folder": str(folder), **names})
    return names


def of_picture(model: Path, client: str | None, picture: Path) -> Tensor:
    (answers,) = fedtailor.load(model).answers(Pictures([picture]), client)
    return answers.logits


# --- transformers ---------------------------------------------------------------------------------------------------


@by_client
@pytest.mark.parametrize(("method", "tuner"), [("clip-lora", "lora"), ("fedpurel", "text_prompt"), ("tailor", "head")])
def test_transformers(
    model_of: Any, tmp_path: Path, picture: Path, method: str, tuner: str, client: str | None
) -> None:
    """Broken: a merged delta is lost or in the wrong matrix, the classifier is another's, or the card's code fails."""
    folder = model_of(method, tuner, **ALL) if tuner == "lora" else model_of(method, tuner)
    done = fedtailor.export(folder, "transformers", tmp_path / "out", client=client)
    assert done.difference < 1e-4
    found = usage(done.folder, picture=picture)
    torch.testing.assert_close(found["logits"], of_picture(folder, client, picture), **CLOSE)
    clip, x = found["clip"], pixels(3)
    with torch.no_grad():
        z = F.normalize(clip.visual_projection(clip.vision_model(x).pooler_output), dim=-1)
    it = found["classifier"]
    torch.testing.assert_close(it["logit_scale"] * z @ it["weight"].T + it["bias"], ours(folder, client, x), **CLOSE)


def test_transformers_reads_sentences_too(model_of: Any, tmp_path: Path) -> None:
    """Broken: the text tower lacks its deltas, or the folder's tokenizer makes other sentences."""
    from transformers import AutoTokenizer, CLIPModel

    folder = model_of("clip-lora", "lora", **ALL)
    fedtailor.export(folder, "transformers", tmp_path / "out")
    words, clip = AutoTokenizer.from_pretrained(tmp_path / "out"), CLIPModel.from_pretrained(tmp_path / "out")
    written = [f"{words.bos_token}{TEMPLATE.format(name.replace('_', ' '))}{words.eos_token}" for name in NAMES]
    ids = words(written, return_tensors="pt", padding=True, add_special_tokens=False)["input_ids"]
    with torch.no_grad():
        logits = clip(input_ids=ids, pixel_values=pixels(3)).logits_per_image
    torch.testing.assert_close(logits, ours(folder, None, pixels(3)), **CLOSE)


# --- open_clip ------------------------------------------------------------------------------------------------------

OPENAI_NAMES = {  # some of a published ViT's and ResNet's
    "vit": {
        "visual.transformer.resblocks.0.attn.in_proj_weight",
        "visual.transformer.resblocks.0.mlp.c_fc.bias",
        "visual.class_embedding",
        "visual.positional_embedding",
        "visual.proj",
        "transformer.resblocks.2.ln_2.weight",
        "ln_final.weight",
    },
    "resnet": {
        "visual.layer1.0.downsample.0.weight",
        "visual.layer4.0.bn3.running_var",
        "visual.attnpool.c_proj.bias",
        "text_projection",
        "token_embedding.weight",
        "logit_scale",
    },
}


@by_client
@pytest.mark.parametrize(("kind", "shape"), [("vit", VIT), ("resnet", RESNET)])
def test_open_clip(model_of: Any, tmp_path: Path, kind: str, shape: Any, client: str | None) -> None:
    """Broken: names or shapes are not those of the format, its configuration tells of another tower, or logits differ.

    open_clip itself needs torchvision; its format is read by our own loader, which takes published checkpoints.
    """
    folder = model_of("clip-lora", "lora", kind)
    done = fedtailor.export(folder, "open_clip", tmp_path / "out", client=client)
    state = load_file(done.folder / "open_clip_model.safetensors")
    assert {name: value.shape for name, value in state.items()} == {
        name: value.shape for name, value in to_openai(Clip(shape)).items()
    }
    assert OPENAI_NAMES[kind] <= state.keys()
    cfg = json.loads((done.folder / "open_clip_config.json").read_text())
    model_cfg, vision = cfg["model_cfg"], cfg["model_cfg"]["vision_cfg"]
    assert model_cfg.keys() == {"embed_dim", "quick_gelu", "vision_cfg", "text_cfg"}
    assert model_cfg["text_cfg"].keys() == {"context_length", "vocab_size", "width", "heads", "layers"}
    assert vision["layers"] == (3 if kind == "vit" else [1, 1, 1, 1])
    heads = (vision["width"] if kind == "vit" else 32 * vision["width"]) // vision["head_width"]  # as open_clip counts
    assert heads == shape.vision_heads
    assert cfg["preprocess_cfg"]["interpolation"] == "bicubic"
    read, it = load(str(done.folder)), load_file(done.folder / "classifier.safetensors")
    assert read.clip.shape == shape
    with torch.no_grad():
        z = F.normalize(read.clip.vision(pixels(3)), dim=-1)
    logits = it["logit_scale"] * z @ it["weight"].T + it["bias"]
    torch.testing.assert_close(logits, ours(folder, client, pixels(3)), **CLOSE)


# --- classifier -----------------------------------------------------------------------------------------------------

MATRICES = [
    ("promptfl", "text_prompt", "vit"),
    ("capt", "coupled+class_prompt", "vit"),
    ("capt", "coupled+class_prompt", "resnet"),
    ("maple", "coupled", "vit"),
    ("fedavg", "visual_prompt", "vit"),
    ("fedclip", "adapter", "vit"),
    ("fedavg", "adapter+head", "resnet"),
    ("clip-lora", "lora", "resnet"),
    ("promptfolio", "text_prompt", "resnet"),
]


@by_client
@pytest.mark.parametrize(("method", "tuner", "kind"), MATRICES)
def test_classifier(model_of: Any, tmp_path: Path, method: str, tuner: str, kind: str, client: str | None) -> None:
    """Broken: the file that comes with it computes another tower, or prompts, gates or deltas are left out.

    It is loaded from the exported folder, as somebody without fedtailor would."""
    folder = model_of(method, tuner, kind)
    done = fedtailor.export(folder, "classifier", tmp_path / "out", client=client)
    spec = importlib.util.spec_from_file_location("its_classify", done.folder / "classify.py")
    assert spec is not None
    assert spec.loader is not None
    spec.loader.exec_module(there := importlib.util.module_from_spec(spec))
    logits = there.Classifier(done.folder).logits(pixels(3))
    torch.testing.assert_close(logits, ours(folder, client, pixels(3)), **CLOSE)


def test_classify_stands_alone(model_of: Any, tmp_path: Path, picture: Path) -> None:
    """Broken: it imports fedtailor, says another class than predict, or forgets the calibration."""
    folder = model_of("capt", "coupled+class_prompt", calibrated=True)
    done = fedtailor.export(folder, "classifier", tmp_path / "out")
    alone = "import runpy, sys; sys.modules['fedtailor'] = None; runpy.run_path(sys.argv[1], run_name='__main__')"
    command = [sys.executable, "-c", alone.replace("run_path(sys.argv[1]", "run_path(sys.argv.pop(1)")]
    out = subprocess.run([*command, done.folder / "classify.py", picture], capture_output=True, text=True, timeout=120)
    assert out.returncode == 0, out.stderr
    (best,) = fedtailor.load(folder).predict(picture)
    said = [f"{name} {share:.1%}" for name, share in best.classes]
    assert out.stdout == f"{picture}: {', '.join(said)}\n"


@pytest.mark.parametrize("resize", ["bicubic", "bilinear", "late"])
def test_classify_prepares_pictures_alike(model_of: Any, tmp_path: Path, resize: str) -> None:
    """Broken: a picture is cropped, resized or normalised otherwise; here one with an odd margin."""
    from fedtailor.data.preprocess import Preprocess
    from fedtailor.exports.classify import Classifier

    done = fedtailor.export(model_of("promptfl", "text_prompt"), "classifier", tmp_path / "out")
    it = Classifier(done.folder)
    it.facts["preprocessing"]["resize"] = resize
    picture = np.random.default_rng(3).integers(0, 255, (50, 41, 3)).astype(np.uint8)
    wanted = Preprocess(32, (0.5,) * 3, (0.25,) * 3, resize)(picture)  # type: ignore[arg-type]
    assert torch.equal(it.pixels(Image.fromarray(picture)), wanted)


def test_the_matrix_with_numpy(model_of: Any, tmp_path: Path) -> None:
    """Broken: the card's lines for numpy do not give the calibrated probabilities."""
    folder = model_of("tailor", "head", calibrated=True)
    done = fedtailor.export(folder, "classifier", tmp_path / "out", client="north")
    code = re.findall(r"```python\n(.*?)```", (done.folder / "README.md").read_text(), re.DOTALL)[1]
    features = Source.of(fedtailor.load(folder), "north").model.clip.vision(pixels(3)).detach().numpy()
    exec(code, names := {"folder": done.folder, "features": features})
    wanted = (ours(folder, "north", pixels(3)) / 1.5).softmax(dim=1).numpy()
    np.testing.assert_allclose(names["p"], wanted, rtol=1e-4, atol=1e-5)


# --- peft -----------------------------------------------------------------------------------------------------------

LORAS = {"both": ALL, "image": {"tuner.towers": "image", "tuner.first": 1, "tuner.rank": 3, "tuner.alpha": 2.5}}


def test_peft_files(model_of: Any, tmp_path: Path) -> None:
    """Broken: rank, α, or which matrices have deltas is told otherwise than the tuner says."""
    done = fedtailor.export(model_of("clip-lora", "lora", **LORAS["image"]), "peft", tmp_path / "out")
    config = json.loads((done.folder / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"], config["use_rslora"], config["lora_dropout"]) == (3, 2.5, True, 0.1)
    names = [f"vision_model.encoder.layers.{i}.self_attn.{m}_proj" for i in (1, 2) for m in "kqv"]
    assert config["target_modules"] == names
    tensors = load_file(done.folder / "adapter_model.safetensors")
    assert set(tensors) == {f"base_model.model.{name}.lora_{which}.weight" for name in names for which in "AB"}


@pytest.mark.slow  # to import peft takes as long as all other tests here
@by_client
@pytest.mark.parametrize("which", LORAS)
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_peft(model_of: Any, clips: dict[str, Path], tmp_path: Path, which: str, client: str | None) -> None:
    """Broken: peft scales the deltas otherwise, or finds other matrices; the card's code is run as it is written."""
    folder = model_of("clip-lora", "lora", **LORAS[which])
    done = fedtailor.export(folder, "peft", tmp_path / "out", client=client)
    found = usage(done.folder, clip=clips["vit"], pixels=pixels(3))
    torch.testing.assert_close(found["logits"], ours(folder, client, pixels(3)), **CLOSE)
    assert sum("lora_A" in name for name, _ in found["tuned"].named_parameters()) == (24 if which == "both" else 6)


# --- onnx -----------------------------------------------------------------------------------------------------------

GRAPHS = [
    ("fedavg", "text_prompt+visual_prompt", "vit"),
    ("capt", "coupled+class_prompt", "resnet"),
    ("clip-lora", "lora", "vit"),
    ("clip-lora", "lora", "resnet"),
    ("fedpurel", "adapter", "vit"),
    ("fedpurel", "lora", "vit"),
    ("fedpgp", "text_prompt", "vit"),
    ("pfedprompt", "text_prompt", "resnet"),
    ("tailor", "head", "vit"),
    ("fedloge", "resnet", "vit"),
    ("scratch-fedavg", "resnet", "vit"),
]


def check_onnx(folder: Path, out: Path, client: str | None) -> None:
    import onnxruntime

    done = fedtailor.export(folder, "onnx", out, client=client)
    assert done.difference < 1e-4
    session = onnxruntime.InferenceSession(done.folder / "model.onnx")
    for batch in (1, 2, 5):
        (logits,) = session.run(None, {"pixels": pixels(batch).numpy()})
        torch.testing.assert_close(torch.from_numpy(logits), ours(folder, client, pixels(batch)), **CLOSE)
    found, facts = session.get_modelmeta().custom_metadata_map, json.loads((done.folder / "export.json").read_text())
    assert json.loads(found["classes"]) == facts["classes"] == list(NAMES)
    assert json.loads(found["preprocessing"]) == facts["preprocessing"]
    assert float(found["temperature"]) == facts["temperature"] == 1.5


def test_onnx(model_of: Any, tmp_path: Path) -> None:
    """Broken: the graph is of one batch size, lacks the log prior or the branch of a client, or has no metadata."""
    check_onnx(model_of("fedpurel", "text_prompt", calibrated=True), tmp_path / "out", "north")


@pytest.mark.slow
@by_client
@pytest.mark.parametrize(("method", "tuner", "kind"), GRAPHS)
def test_any_onnx(model_of: Any, tmp_path: Path, method: str, tuner: str, kind: str, client: str | None) -> None:
    check_onnx(model_of(method, tuner, kind, calibrated=True), tmp_path / "out", client)


@pytest.mark.slow
@pytest.mark.parametrize("resize", ["bicubic", "bilinear"])
def test_the_card_of_an_onnx(model_of: Any, tmp_path: Path, resize: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Broken: its code does not run, prepares a picture otherwise, or tells another class or probability."""
    tuned = fedtailor.load(model_of("promptfl", "text_prompt", calibrated=True))
    preprocessing = tuned.facts.preprocessing.model_copy(update={"resize": resize})
    tuned = replace(tuned, facts=tuned.facts.model_copy(update={"preprocessing": preprocessing}))
    odd = tmp_path / "odd.png"
    Image.fromarray(np.random.default_rng(3).integers(0, 255, (50, 41, 3)).astype(np.uint8)).save(odd)
    done = fedtailor.export(tuned, "onnx", tmp_path / "out")
    found, (wanted,) = usage(done.folder, picture=odd), tuned.predict(odd)
    assert capsys.readouterr().out == f"{[wanted.label]}\n"
    np.testing.assert_allclose(found["p"], tuned.probabilities(odd), rtol=1e-4, atol=1e-5)


# --- all of them ----------------------------------------------------------------------------------------------------


def test_further_classes(model_of: Any, tmp_path: Path) -> None:
    """Broken: a model that was given more classes is exported without them."""
    from fedtailor.exports.classify import Classifier

    more = fedtailor.load(model_of("promptfl", "text_prompt")).with_classes(["otter"])
    done = fedtailor.export(more, "classifier", tmp_path / "out")
    it = Classifier(done.folder)
    assert it.classes == [*NAMES, "otter"]
    with torch.no_grad():
        wanted = more.logits_of(None)(more.model.clip.vision(pixels(2), "pixels", more.model.stage))
    torch.testing.assert_close(it.logits(pixels(2)), wanted, **CLOSE)


def test_formats_of_the_help(call: Call) -> None:
    """Broken: the command line does not name a format, or one that is none."""
    from fedtailor.cli.export import TO

    assert re.split(r", | or ", TO) == list(FORMATS)
    assert TO.split(",")[0] in call("export", "--help").out
