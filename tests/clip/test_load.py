"""Opening a backbone: every kind of it, and every way it can be wrong, named in the error."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from clip_helpers import SMALL, VOCAB, normal, small_clip, small_folder, write_tokenizer
from safetensors.torch import load_file, save_file
from torch import Tensor

from fedtailor.base.errors import UserError
from fedtailor.clip.layouts import to_openai
from fedtailor.clip.load import CLIP_MEAN, CLIP_STD, load
from fedtailor.clip.model import Clip, Shape

SHAPE = Shape(**{**vars(SMALL), "vocab": VOCAB})
WIDE = Shape(**{**vars(SHAPE), "vision_width": 192, "text_width": 128})  # OpenAI's files have heads 64 wide


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    small_folder(tmp_path / "clip", SHAPE)
    return tmp_path / "clip"


def openai_file(folder: Path, shape: Shape = WIDE) -> Path:
    folder.mkdir(exist_ok=True)
    save_file(to_openai(small_clip(shape)), folder / "ViT.safetensors")
    write_tokenizer(folder)
    return folder / "ViT.safetensors"


def change(file: Path, edit: Callable[[dict[str, Tensor]], object]) -> None:
    state = load_file(file)
    edit(state)
    save_file(state, file)


def edit_json(file: Path, **entries: object) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **entries}))


def same(a: Clip, b: Clip) -> bool:
    mine, other = a.state_dict(), b.state_dict()
    return mine.keys() == other.keys() and all(torch.equal(value, other[key]) for key, value in mine.items())


# --- what opens ----------------------------------------------------------------------------------------------------


def test_folder(folder: Path) -> None:
    """Broken: a written folder does not come back as it was, frozen, with its tokenizer and normalisation."""
    checkpoint = load(str(folder))
    assert checkpoint.clip.shape == SHAPE
    assert same(checkpoint.clip, small_clip(SHAPE))
    assert not checkpoint.clip.training
    assert not any(value.requires_grad for value in checkpoint.clip.parameters())
    assert (checkpoint.mean, checkpoint.std) == (CLIP_MEAN, CLIP_STD)
    assert checkpoint.tokenizer.eot == VOCAB - 1


def test_own_normalisation(folder: Path) -> None:
    """Broken: a checkpoint that was trained with another mean and std gets CLIP's."""
    (folder / "preprocessor_config.json").write_text(
        json.dumps({"image_mean": [0.5, 0.4, 0.3], "image_std": [1, 2, 3]})
    )
    checkpoint = load(str(folder))
    assert (checkpoint.mean, checkpoint.std) == ((0.5, 0.4, 0.3), (1, 2, 3))


def test_half_precision_file(folder: Path) -> None:
    """Broken: weights that are stored in half precision are not computed with in fp32."""
    change(folder / "model.safetensors", lambda state: state.update({k: v.half() for k, v in state.items()}))
    clip = load(str(folder)).clip
    assert all(value.dtype == torch.float32 for value in clip.parameters())
    assert clip.vision(normal(1, 3, 32, 32)).isfinite().all()


def test_openai_file_with_leftovers(tmp_path: Path) -> None:
    """Broken: OpenAI's constants beside the weights are taken for unknown weights."""
    file = openai_file(tmp_path)
    constants = {
        "input_resolution": torch.tensor(32),
        "context_length": torch.tensor(77),
        "vocab_size": torch.tensor(9),
    }
    change(file, lambda state: state.update(constants))
    assert same(load(str(file)).clip, small_clip(WIDE))


def test_open_clip_folder(tmp_path: Path) -> None:
    """Broken: open_clip's settings are not read: its models use GELU, and heads of their own number."""
    folder = openai_file(tmp_path).parent
    (folder / "ViT.safetensors").rename(folder / "open_clip_model.safetensors")
    settings = {"vision_cfg": {"head_width": 32}, "text_cfg": {"heads": 4}}
    (folder / "open_clip_config.json").write_text(json.dumps({"model_cfg": settings}))
    shape = load(str(folder)).clip.shape
    assert (shape.act, shape.vision_heads, shape.text_heads) == ("gelu", 6, 4)


def test_older_files_with_position_ids(folder: Path) -> None:
    """Broken: the position counters of older Hugging Face files are taken for unknown weights."""
    counters = {f"{tower}_model.embeddings.position_ids": torch.arange(5) for tower in ("text", "vision")}
    change(folder / "model.safetensors", lambda state: state.update(counters))
    assert same(load(str(folder)).clip, small_clip(SHAPE))


def test_digest_follows_the_weights(folder: Path, tmp_path: Path) -> None:
    """Broken: a client with other weights than the server's is not noticed, or one with the same is refused."""
    first = load(str(folder)).digest
    assert load(str(folder)).digest == first
    small_folder(tmp_path / "other", SHAPE, seed=1)
    assert load(str(tmp_path / "other")).digest != first
    one, two = tmp_path / "one", tmp_path / "two"
    small_folder(one, WIDE)
    assert load(str(one)).digest == load(str(openai_file(two))).digest  # the layout does not matter


def test_hub_id(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Broken: a hub id is not fetched, or fetches pickles too."""
    asked = {}

    def snapshot(name: str, revision: str | None, allow_patterns: list[str]) -> str:
        asked[name] = allow_patterns
        return str(folder)

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot)
    checkpoint = load("some-lab/some-clip")
    assert same(checkpoint.clip, small_clip(SHAPE))
    assert checkpoint.name == "some-lab/some-clip"
    assert list(asked) == ["some-lab/some-clip"]
    assert not any(pattern.endswith((".bin", ".pt", "*")) for pattern in asked["some-lab/some-clip"])


# --- what does not -------------------------------------------------------------------------------------------------


def refused(name: Path | str, *words: str) -> None:
    with pytest.raises(UserError) as caught:
        load(str(name))
    for word in words:
        assert word in str(caught.value)


def test_hub_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """Broken: without a network the user gets a trace instead of a sentence."""

    def offline(name: str, revision: str | None, allow_patterns: list[str]) -> str:
        raise OSError("no route to host")

    monkeypatch.setattr("huggingface_hub.snapshot_download", offline)
    refused("some-lab/some-clip", "some-lab/some-clip", "no route to host")


def test_no_hub_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """Broken: the optional library's absence is a trace instead of advice."""
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    refused("some-lab/some-clip", "fedtailor[hub]")


@pytest.mark.parametrize("key", ["text_model.final_layer_norm.bias", "visual_projection.weight", "logit_scale"])
def test_missing_key(folder: Path, key: str) -> None:
    """Broken: a weight that is not in the file silently keeps its random start."""
    ours = {"text_model.final_layer_norm.bias": "text.ln_final.bias", "visual_projection.weight": "vision.proj"}
    change(folder / "model.safetensors", lambda state: state.pop(key))
    refused(folder, f"missing {ours.get(key, key)}")


def test_missing_part_of_a_stack(folder: Path) -> None:
    """Broken: without q, the three stacked matrices are filled from two."""
    change(folder / "model.safetensors", lambda state: state.pop("text_model.encoder.layers.1.self_attn.q_proj.weight"))
    refused(folder, "missing text.transformer.resblocks.1.attn.in_proj_weight")


def test_unknown_key(folder: Path) -> None:
    """Broken: a weight that has no place is dropped unnoticed."""
    change(folder / "model.safetensors", lambda state: state.update({"vision_model.extra.weight": torch.ones(2)}))
    refused(folder, "unknown vision_model.extra.weight")


def test_wrong_shape(folder: Path) -> None:
    """Broken: a weight of another shape is broadcast or reported without its name."""
    key = "text_model.embeddings.position_embedding.weight"
    change(folder / "model.safetensors", lambda state: state.update({key: state[key][:50].clone()}))
    refused(folder, "text.positional_embedding is (50, 32), should be (77, 32)")


def test_many_problems_are_counted(folder: Path) -> None:
    """Broken: a config of another model fills the screen instead of a sentence."""
    config = json.loads((folder / "config.json").read_text())
    edit_json(folder / "config.json", text_config={**config["text_config"], "num_hidden_layers": 6})
    refused(folder, "missing text.transformer.resblocks.3", "and 26 more")


@pytest.mark.parametrize(
    "key", ["text_projection", "visual.proj", "positional_embedding", "visual.positional_embedding"]
)
def test_openai_file_without_a_weight(tmp_path: Path, key: str) -> None:
    """Broken: a weight that the shape is read from is missing, and the user gets a KeyError."""
    file = openai_file(tmp_path)
    change(file, lambda state: state.pop(key))
    refused(file, "ViT.safetensors", key.replace("visual.", ""))


@pytest.mark.parametrize("name", ["model.pt", "pytorch_model.bin", "last.pth", "last.ckpt"])
@pytest.mark.parametrize("whole", [True, False], ids=["file", "folder"])
def test_pickles_are_refused(tmp_path: Path, name: str, whole: bool) -> None:
    """Broken: a file that can run code when it is opened, is opened."""
    torch.save({"a": torch.ones(1)}, tmp_path / name)
    refused(tmp_path / name if whole else tmp_path, "pickle", "save_file")


def test_truncated_file(folder: Path) -> None:
    """Broken: half a download is a trace, or worse, opens."""
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:2000])
    refused(folder, "not a readable safetensors file", "model.safetensors")


def test_another_model(tmp_path: Path, folder: Path) -> None:
    """Broken: weights or a config of something else than a CLIP."""
    save_file({"bert.embeddings.weight": torch.ones(2)}, tmp_path / "model.safetensors")
    refused(tmp_path, "neither a Hugging Face CLIP nor an OpenAI", "bert.embeddings.weight")
    edit_json(folder / "config.json", model_type="siglip")
    refused(folder, "siglip")


def test_unsupported_settings(folder: Path) -> None:
    """Broken: an activation or a width that the towers do not have is computed as another."""
    config = json.loads((folder / "config.json").read_text())
    for part, entry, word in (
        ("text_config", {"hidden_act": "relu"}, "relu"),
        ("vision_config", {"intermediate_size": 7}, "7"),
    ):
        edit_json(folder / "config.json", **{**config, part: {**config[part], **entry}})
        refused(folder, word, "config.json")


def test_files_that_are_missing(folder: Path, tmp_path: Path) -> None:
    """Broken: an incomplete folder is a trace instead of the name of the file it lacks."""
    for name in ("tokenizer.json", "config.json", "model.safetensors"):
        copy = tmp_path / name.partition(".")[0]
        shutil.copytree(folder, copy)
        (copy / name).unlink()
        refused(copy, name)


@pytest.mark.parametrize("name", ["tokenizer.json", "config.json", "preprocessor_config.json"])
def test_files_that_are_broken(folder: Path, name: str) -> None:
    """Broken: a damaged file is a trace instead of its name."""
    (folder / name).write_text("{ not json")
    refused(folder, name)


def test_split_checkpoint(tmp_path: Path) -> None:
    """Broken: a checkpoint in several files is reported as none."""
    (tmp_path / "model.safetensors.index.json").write_text("{}")
    refused(tmp_path, "several safetensors files")


def test_unknown_backbone() -> None:
    """Broken: a misspelt backbone is looked up on the hub, or is a trace."""
    refused("no such thing", "no such thing", "bundled", "hub id")
