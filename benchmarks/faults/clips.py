"""What may be wrong with a CLIP's folder: each a function that spoils one, in Hugging Face's layout."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from fedtailor.clip.load import load, to_openai

Spoil = Callable[[Path], None]
CONFIG, PICTURES, WORDS, WEIGHTS = "config.json", "preprocessor_config.json", "tokenizer.json", "model.safetensors"
EMBEDDING, POSITIONS = "text_model.embeddings.token_embedding.weight", "visual.positional_embedding"
BYTES = {"not UTF-8": b'\xff\xfe{"a": 1}', "a list": b"[1]", "cut short": b'{"a": ', "nested": b"[" * 10**5}


def put(file: str, data: bytes) -> Spoil:
    return lambda folder: (folder / file).write_bytes(data) and None


def edit(file: str, part: str = "", **entries: Any) -> Spoil:
    def spoil(folder: Path) -> None:
        path = folder / file
        document = json.loads(path.read_text()) if path.is_file() else {}
        (document[part] if part else document).update(entries)
        path.write_text(json.dumps(document))

    return spoil


def weights(change: Callable[[dict[str, Tensor]], None]) -> Spoil:
    def spoil(folder: Path) -> None:
        state = load_file(folder / WEIGHTS)
        change(state)
        save_file(state, folder / WEIGHTS)

    return spoil


def openai(**entries: Tensor) -> Spoil:
    """The same weights in OpenAI's layout, with some that are not right."""

    def spoil(folder: Path) -> None:
        state = {name: value.clone() for name, value in to_openai(load(str(folder)).clip).items()}
        save_file({**state, **{name.replace("__", "."): value for name, value in entries.items()}}, folder / WEIGHTS)
        (folder / CONFIG).unlink()

    return spoil


def open_clip(document: Any) -> Spoil:
    def spoil(folder: Path) -> None:
        openai()(folder)
        (folder / "open_clip_config.json").write_text(json.dumps(document))

    return spoil


def one(name: str, value: float) -> Spoil:
    def change(state: dict[str, Tensor]) -> None:
        state[name] = state[name].clone()
        state[name].view(-1)[0] = value

    return weights(change)


def words(change: Callable[[dict[str, Any]], None]) -> Spoil:
    def spoil(folder: Path) -> None:
        document = json.loads((folder / WORDS).read_text())
        change(document)
        (folder / WORDS).write_text(json.dumps(document))

    return spoil


CLIPS: dict[str, Spoil] = {
    **{f"{file}: {how}": put(file, data) for file in (CONFIG, PICTURES, WORDS) for how, data in BYTES.items()},
    **{
        f"{CONFIG}: {part}.{name} is {value!r}": edit(CONFIG, f"{part}_config", **{name: value})
        for part, name, value in (
            ("text", "num_hidden_layers", 10**7),
            ("vision", "num_hidden_layers", 10**7),
            ("text", "num_hidden_layers", "3"),
            ("text", "num_hidden_layers", None),
            ("text", "num_hidden_layers", -1),
            ("text", "num_attention_heads", 0),
            ("vision", "num_attention_heads", -2),
            ("text", "hidden_size", 10**12),
            ("text", "vocab_size", 10**18),
            ("vision", "patch_size", 0),
            ("vision", "image_size", 10**9),
            ("text", "hidden_act", {}),
        )
    },
    f"{CONFIG}: text_config is a list": edit(CONFIG, text_config=[1]),
    f"{CONFIG}: both activations are lists": lambda folder: (
        [edit(CONFIG, f"{part}_config", hidden_act=[1])(folder) for part in ("text", "vision")] and None
    ),
    **{
        f"{PICTURES}: {entries}": edit(PICTURES, **entries)
        for entries in (
            {"image_mean": "abc"},
            {"image_mean": [0.5, 0.5]},
            {"image_mean": None},
            {"image_mean": ["a", "b", "c"]},
            {"image_std": [0, 0, 0]},
            {"image_std": [float("nan"), 1, 1]},
            {"image_std": [1e-300, 1, 1]},
        )
    },
    f"{WORDS}: a token beyond the vocabulary": words(
        lambda it: it["model"]["vocab"].update({"a</w>": 10**6, "a": 10**6})
    ),
    "weights: NaN in the tokens": one(EMBEDDING, float("nan")),
    "weights: infinite in the picture's": one("vision_model.embeddings.patch_embedding.weight", float("inf")),
    "weights: logit_scale is 1000": weights(lambda state: state.update(logit_scale=torch.tensor(1000.0))),
    "weights: layers.99999999": weights(
        lambda state: state.update({"text_model.encoder.layers.99999999.layer_norm1.weight": torch.zeros(1)})
    ),
    "weights: whole numbers": weights(lambda state: state.update({k: v.long() for k, v in state.items()})),
    "weights: cut short": lambda folder: put(WEIGHTS, (folder / WEIGHTS).read_bytes()[:-10])(folder),
    "weights: empty": put(WEIGHTS, b""),
    "OpenAI's layout: layers.99999999": openai(visual__transformer__resblocks__99999999__x=torch.zeros(1)),
    "OpenAI's layout: conv1 of one axis": openai(visual__conv1__weight=torch.zeros(3)),
    "OpenAI's layout: text_projection of one axis": openai(text_projection=torch.zeros(3)),
    "OpenAI's layout: tokens of no axis": openai(token_embedding__weight=torch.tensor(1.0)),
    "OpenAI's layout: no positions": openai(visual__positional_embedding=torch.zeros(0)),
    **{
        f"open_clip_config.json: {document}": open_clip(document)
        for document in (
            {"model_cfg": [1]},
            {"model_cfg": {"text_cfg": [1]}},
            {"model_cfg": {"text_cfg": {"heads": "a"}}},
            {"model_cfg": {"vision_cfg": {"head_width": 0}}},
        )
    },
}
