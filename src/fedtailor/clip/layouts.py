"""Names of the same tensors in OpenAI's and in Hugging Face's checkpoints, and the shapes that go with them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..base.errors import UserError
from .model import Clip, Shape


def translate(state: Mapping[str, Tensor], folder: Path, weights: Path) -> tuple[Shape, dict[str, Tensor]]:
    if "text_model.embeddings.token_embedding.weight" in state:
        config = folder / "config.json"
        if not config.is_file():
            raise UserError(f"{weights} has Hugging Face names but there is no config.json beside it")
        return shape_from_config(read_json(config)), from_hugging_face(state)
    if "token_embedding.weight" in state and ("visual.conv1.weight" in state):
        try:
            return shape_from_openai(state, folder), from_openai(state)
        except KeyError as error:
            raise UserError(f"{weights} does not fit: missing {error.args[0]}") from error
    some = ", ".join(sorted(state)[:5])
    raise UserError(f"{weights} is neither a Hugging Face CLIP nor an OpenAI/open_clip state dict; it has {some} …")


def read_json(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise UserError(f"{file} is not readable as JSON: {error}") from error
    if not isinstance(content, dict):
        raise UserError(f"{file} holds a JSON {type(content).__name__}; an object is needed")
    return content


# --- OpenAI's layout is ours but for the prefixes -------------------------------------------------------------------

TEXT_KEYS = ("transformer.", "token_embedding.", "positional_embedding", "ln_final.", "text_projection")
LEFTOVERS = {"input_resolution", "context_length", "vocab_size", "attn_mask"}  # constants that OpenAI's archives carry


def from_openai(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    ours = {}
    for key, value in state.items():
        if key in LEFTOVERS or key.endswith("num_batches_tracked"):
            continue
        if key.startswith("visual."):
            ours["vision." + key.removeprefix("visual.")] = value
        elif key.startswith(TEXT_KEYS):
            ours["text." + key] = value
        else:
            ours[key] = value
    return ours


def to_openai(clip: Clip) -> dict[str, Tensor]:
    return {
        re.sub(r"^vision\.", "visual.", key).removeprefix("text."): value for key, value in clip.state_dict().items()
    }


def shape_from_openai(state: Mapping[str, Tensor], folder: Path) -> Shape:
    def depth(prefix: str) -> int:
        return len({key[len(prefix) :].split(".")[0] for key in state if key.startswith(prefix)})

    embed, text_width = state["text_projection"].shape[1], state["text_projection"].shape[0]
    open_clip = folder / "open_clip_config.json"
    settings = read_json(open_clip)["model_cfg"] if open_clip.is_file() else {}
    text_heads = settings.get("text_cfg", {}).get("heads", text_width // 64)
    act = "gelu" if settings and not settings.get("quick_gelu", False) else "quick_gelu"
    layers: int | tuple[int, ...]
    if "visual.layer1.0.conv1.weight" not in state:
        width, patch = state["visual.conv1.weight"].shape[0], state["visual.conv1.weight"].shape[-1]
        side = round((state["visual.positional_embedding"].shape[0] - 1) ** 0.5)
        layers = depth("visual.transformer.resblocks.")
        heads = width // settings.get("vision_cfg", {}).get("head_width", 64)
        image_size = side * patch
    else:
        width, patch = state["visual.layer1.0.conv1.weight"].shape[0], 0
        layers = tuple(depth(f"visual.layer{i}.") for i in (1, 2, 3, 4))
        heads = width * 32 // 64
        image_size = 32 * round((state["visual.attnpool.positional_embedding"].shape[0] - 1) ** 0.5)
    return Shape(
        embed=embed,
        image_size=image_size,
        patch=patch,
        vision_width=width,
        vision_layers=layers,
        vision_heads=heads,
        context=state["positional_embedding"].shape[0],
        vocab=state["token_embedding.weight"].shape[0],
        text_width=text_width,
        text_layers=depth("transformer.resblocks."),
        text_heads=text_heads,
        act=act,
    )


# --- Hugging Face's layout: other names, q/k/v apart, projections transposed ---------------------------------------

WHOLE = {  # ours → theirs, tensors that only change their name
    "logit_scale": "logit_scale",
    "text.token_embedding.weight": "text_model.embeddings.token_embedding.weight",
    "text.positional_embedding": "text_model.embeddings.position_embedding.weight",
    "text.ln_final.weight": "text_model.final_layer_norm.weight",
    "text.ln_final.bias": "text_model.final_layer_norm.bias",
    "vision.class_embedding": "vision_model.embeddings.class_embedding",
    "vision.conv1.weight": "vision_model.embeddings.patch_embedding.weight",
    "vision.positional_embedding": "vision_model.embeddings.position_embedding.weight",
    "vision.ln_pre.weight": "vision_model.pre_layrnorm.weight",  # their spelling
    "vision.ln_pre.bias": "vision_model.pre_layrnorm.bias",
    "vision.ln_post.weight": "vision_model.post_layernorm.weight",
    "vision.ln_post.bias": "vision_model.post_layernorm.bias",
}
TURNED = {"text.text_projection": "text_projection.weight", "vision.proj": "visual_projection.weight"}
IN_BLOCK = {
    "ln_1": "layer_norm1",
    "ln_2": "layer_norm2",
    "mlp.c_fc": "mlp.fc1",
    "mlp.c_proj": "mlp.fc2",
    "attn.out_proj": "self_attn.out_proj",
}
POSITIONS = re.compile(r"(text|vision)_model\.embeddings\.position_ids")  # 0, 1, 2 …, in older files


def block_names(tower: str, layer: int) -> dict[str, tuple[str, ...]]:
    """One block's tensors: our name → their name, or their three names for the stacked q, k, v."""
    ours, theirs = f"{tower}.transformer.resblocks.{layer}", f"{tower}_model.encoder.layers.{layer}"
    names: dict[str, tuple[str, ...]] = {}
    for end in ("weight", "bias"):
        names |= {f"{ours}.{a}.{end}": (f"{theirs}.{b}.{end}",) for a, b in IN_BLOCK.items()}
        names[f"{ours}.attn.in_proj_{end}"] = tuple(f"{theirs}.self_attn.{m}_proj.{end}" for m in "qkv")
    return names


def all_block_names(text_layers: int, vision_layers: int) -> dict[str, tuple[str, ...]]:
    names: dict[str, tuple[str, ...]] = {}
    for tower, layers in (("text", text_layers), ("vision", vision_layers)):
        for layer in range(layers):
            names |= block_names(tower, layer)
    return names


def from_hugging_face(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    left = {k: v for k, v in state.items() if not POSITIONS.fullmatch(k)}
    depth = {
        tower: 1
        + max((int(m[1]) for k in left if (m := re.match(rf"{tower}_model\.encoder\.layers\.(\d+)\.", k))), default=-1)
        for tower in ("text", "vision")
    }
    ours: dict[str, Tensor] = {}
    for name, theirs in WHOLE.items():
        if theirs in left:
            ours[name] = left.pop(theirs)
    for name, theirs in TURNED.items():
        if theirs in left:
            ours[name] = left.pop(theirs).T.contiguous()
    for name, parts in all_block_names(depth["text"], depth["vision"]).items():
        if all(part in left for part in parts):
            ours[name] = torch.cat([left.pop(part) for part in parts])
    return {**ours, **left}  # what is left is unknown: `fill` names it


def to_hugging_face(clip: Clip) -> dict[str, Tensor]:
    state = clip.state_dict()
    if not isinstance(clip.shape.vision_layers, int):
        raise ValueError("the Hugging Face layout has no ResNet")
    theirs = {name: state[ours] for ours, name in WHOLE.items()}
    theirs |= {name: state[ours].T.contiguous() for ours, name in TURNED.items()}
    for ours, parts in all_block_names(clip.shape.text_layers, clip.shape.vision_layers).items():
        theirs |= dict(zip(parts, state[ours].chunk(len(parts)), strict=True))
    return {k: v.contiguous() for k, v in theirs.items()}


def shape_from_config(config: Mapping[str, Any]) -> Shape:
    if config.get("model_type", "clip") != "clip":
        raise UserError(f"config.json is of a {config['model_type']!r} model; a CLIP is needed")
    # An absent entry has the default of the original ViT-B/32, as the format defines it.
    text, vision = config.get("text_config") or {}, config.get("vision_config") or {}
    act = text.get("hidden_act", "quick_gelu")
    if act != vision.get("hidden_act", "quick_gelu") or act not in {"quick_gelu", "gelu"}:
        raise UserError(f"activation {act!r} in config.json; quick_gelu or gelu, the same in both towers, is supported")
    shape = Shape(
        embed=config.get("projection_dim", 512),
        image_size=vision.get("image_size", 224),
        patch=vision.get("patch_size", 32),
        vision_width=vision.get("hidden_size", 768),
        vision_layers=vision.get("num_hidden_layers", 12),
        vision_heads=vision.get("num_attention_heads", 12),
        context=text.get("max_position_embeddings", 77),
        vocab=text.get("vocab_size", 49408),
        text_width=text.get("hidden_size", 512),
        text_layers=text.get("num_hidden_layers", 12),
        text_heads=text.get("num_attention_heads", 8),
        act=act,
    )
    towers = ((text, shape.text_width, shape.text_heads), (vision, shape.vision_width, shape.vision_heads))
    for part, width, heads in towers:
        if part.get("intermediate_size", 4 * width) != 4 * width:
            raise UserError(f"intermediate_size {part['intermediate_size']} in config.json; 4 × {width} is supported")
        if width % heads:
            raise UserError(f"config.json: {heads} attention heads do not divide a width of {width}")
    return shape


def config_of(shape: Shape, eot: int, sos: int) -> dict[str, Any]:
    common = {"hidden_act": shape.act, "projection_dim": shape.embed}
    return {
        "architectures": ["CLIPModel"],
        "model_type": "clip",
        "projection_dim": shape.embed,
        "logit_scale_init_value": 2.6592,
        "text_config": {
            **common,
            "model_type": "clip_text_model",
            "hidden_size": shape.text_width,
            "intermediate_size": 4 * shape.text_width,
            "num_hidden_layers": shape.text_layers,
            "num_attention_heads": shape.text_heads,
            "max_position_embeddings": shape.context,
            "vocab_size": shape.vocab,
            "bos_token_id": sos,
            "eos_token_id": eot,
            "pad_token_id": eot,
        },
        "vision_config": {
            **common,
            "model_type": "clip_vision_model",
            "hidden_size": shape.vision_width,
            "intermediate_size": 4 * shape.vision_width,
            "num_hidden_layers": shape.vision_layers,
            "num_attention_heads": shape.vision_heads,
            "image_size": shape.image_size,
            "patch_size": shape.patch,
        },
    }
