"""The names that tensors have in OpenAI's and in Hugging Face's checkpoints, and how to tell the shapes of towers."""

import math
import re
from collections.abc import Mapping
from dataclasses import fields
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..base.documents import read_json
from ..base.errors import UserError, shortened
from .model import Clip, Shape

ANOTHER = "copy it anew from where the checkpoint comes from"
LARGEST = 1 << 20  # of any width or number in a tower


def translate(state: Mapping[str, Tensor], folder: Path, weights: Path) -> tuple[Shape, dict[str, Tensor]]:
    if "text_model.embeddings.token_embedding.weight" in state:
        config = folder / "config.json"
        if not config.is_file():
            raise UserError(f"{weights} has Hugging Face names but there is no config.json beside it")
        shape = shape_from_config(read_json(config, ANOTHER))
        return checked_shape(shape, len(state), config), from_hugging_face(state)
    if "token_embedding.weight" in state and "visual.conv1.weight" in state:
        check_ranks(state, weights)
        return checked_shape(shape_from_openai(state, folder), len(state), weights), from_openai(state)
    some = ", ".join(sorted(state)[:5])
    raise UserError(f"{weights} is neither a Hugging Face CLIP nor an OpenAI/open_clip state dict; it has {some} …")


def checked_shape(shape: Shape, tensors: int, source: Path) -> Shape:
    """That towers of this shape can be made at all, before anybody tries."""
    for field in fields(Shape):
        value = getattr(shape, field.name)
        if field.name == "act" or (field.name == "patch" and isinstance(shape.vision_layers, tuple)):
            continue
        most = tensors if "layers" in field.name else LARGEST
        for number in value if isinstance(value, tuple) else (value,):
            if type(number) is not int or not 1 <= number <= most:
                raise UserError(
                    f"{source}: {field.name} should be a whole number from 1 to {most}, got {shortened(number)}"
                )
    if shape.patch > shape.image_size:
        raise UserError(f"{source}: patches of {shape.patch} pixels do not fit pictures of {shape.image_size}")
    for width, heads in ((shape.text_width, shape.text_heads), (shape.vision_width, shape.vision_heads)):
        if isinstance(shape.vision_layers, int) and width % heads:
            raise UserError(f"{source}: {heads} attention heads do not divide a width of {width}")
    return shape


def group(document: Mapping[str, Any], name: str, source: object) -> Mapping[str, Any]:
    """A group of a configuration; an empty one if it is not there."""
    found = document.get(name) or {}
    if not isinstance(found, Mapping):
        raise UserError(f"{source}: {name} should be an object, got {shortened(found)}")
    return found


# --- OpenAI's layout: ours, with other prefixes ---------------------------------------------------------------------

TEXT_KEYS = ("transformer.", "token_embedding.", "positional_embedding", "ln_final.", "text_projection")
LEFTOVERS = {"input_resolution", "context_length", "vocab_size", "attn_mask"}  # constants that OpenAI's archives carry


def from_openai(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    ours = {}
    for key, value in state.items():
        if key not in LEFTOVERS and not key.endswith("num_batches_tracked"):
            ours[f"text.{key}" if key.startswith(TEXT_KEYS) else re.sub(r"^visual\.", "vision.", key)] = value
    return ours


def to_openai(clip: Clip) -> dict[str, Tensor]:
    """Weights alone: their shapes tell all that `shape_from_openai` needs, if heads are 64 wide."""
    state = {k: v for k, v in clip.state_dict().items() if not k.endswith("num_batches_tracked")}
    return {re.sub(r"^vision\.", "visual.", key.removeprefix("text.")): v.contiguous() for key, v in state.items()}


# Of what tells the shape: how many dimensions it has. The image tower has the first two or the others.
RANKS = {"text_projection": 2, "token_embedding.weight": 2, "positional_embedding": 2, "visual.conv1.weight": 4}
VIT, RESNET = {"visual.positional_embedding": 2}, {"visual.attnpool.positional_embedding": 2}


def check_ranks(state: Mapping[str, Tensor], weights: Path) -> None:
    kind = RESNET if "visual.layer1.0.conv1.weight" in state else VIT
    for name, rank in {**RANKS, **kind}.items():
        if name not in state:
            raise UserError(f"{weights} does not fit: missing {name}")
        if state[name].dim() != rank or not state[name].numel():
            raise UserError(f"{weights} does not fit: {name} is {tuple(state[name].shape)}, {rank} dimensions are due")


def shape_from_openai(state: Mapping[str, Tensor], folder: Path) -> Shape:
    def depth(prefix: str) -> int:
        return len({key[len(prefix) :].split(".")[0] for key in state if key.startswith(prefix)})

    def side(positions: str) -> int:
        return math.isqrt(len(state[positions]) - 1)

    text_width, embed = state["text_projection"].shape
    open_clip = folder / "open_clip_config.json"
    settings = group(read_json(open_clip, ANOTHER), "model_cfg", open_clip) if open_clip.is_file() else {}
    text_heads = group(settings, "text_cfg", open_clip).get("heads", text_width // 64)
    act = "gelu" if settings and not settings.get("quick_gelu", False) else "quick_gelu"
    layers: int | tuple[int, ...]
    if "visual.layer1.0.conv1.weight" not in state:
        width, _, _, patch = state["visual.conv1.weight"].shape
        layers = depth("visual.transformer.resblocks.")
        head = group(settings, "vision_cfg", open_clip).get("head_width", 64)
        if type(head) is not int or not 1 <= head <= width:
            raise UserError(
                f"{open_clip}: head_width should be a whole number from 1 to {width}, got {shortened(head)}"
            )
        heads = width // head
        image_size = patch * side("visual.positional_embedding")
    else:
        width, patch = len(state["visual.layer1.0.conv1.weight"]), 0
        layers = tuple(depth(f"visual.layer{i}.") for i in (1, 2, 3, 4))
        heads = width * 32 // 64
        image_size = 32 * side("visual.attnpool.positional_embedding")
    context, vocab = len(state["positional_embedding"]), len(state["token_embedding.weight"])
    text_layers = depth("transformer.resblocks.")
    return Shape(
        embed, image_size, patch, width, layers, heads, context, vocab, text_width, text_layers, text_heads, act
    )


# --- Hugging Face's layout: other names, q/k/v apart, projections transposed ---------------------------------------

RENAMED = {  # ours → theirs
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
TRANSPOSED = {"text.text_projection": "text_projection.weight", "vision.proj": "visual_projection.weight"}
IN_BLOCK = {
    "ln_1": "layer_norm1",
    "ln_2": "layer_norm2",
    "mlp.c_fc": "mlp.fc1",
    "mlp.c_proj": "mlp.fc2",
    "attn.out_proj": "self_attn.out_proj",
}
POSITIONS = re.compile(r"(text|vision)_model\.embeddings\.position_ids")  # 0, 1, 2 …, in older files


def block_names(text_layers: int, vision_layers: int) -> dict[str, tuple[str, ...]]:
    """All blocks' tensors: our name → their name, or their three names for the stacked q, k, v."""
    names: dict[str, tuple[str, ...]] = {}
    blocks = [("text", i) for i in range(text_layers)] + [("vision", i) for i in range(vision_layers)]
    for (tower, layer), end in product(blocks, ("weight", "bias")):
        ours, theirs = f"{tower}.transformer.resblocks.{layer}", f"{tower}_model.encoder.layers.{layer}"
        names |= {f"{ours}.{a}.{end}": (f"{theirs}.{b}.{end}",) for a, b in IN_BLOCK.items()}
        names[f"{ours}.attn.in_proj_{end}"] = tuple(f"{theirs}.self_attn.{m}_proj.{end}" for m in "qkv")
    return names


def from_hugging_face(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    left = {k: v for k, v in state.items() if not POSITIONS.fullmatch(k)}

    def depth(tower: str) -> int:
        found = (re.match(rf"{tower}_model\.encoder\.layers\.(\d+)\.", key) for key in left)
        return len({match[1] for match in found if match})  # not the largest, which may be any number

    ours = {name: left.pop(theirs) for name, theirs in RENAMED.items() if theirs in left}
    ours |= {name: left.pop(theirs).T.contiguous() for name, theirs in TRANSPOSED.items() if theirs in left}
    for name, parts in block_names(depth("text"), depth("vision")).items():
        if all(part in left for part in parts):
            ours[name] = torch.cat([left.pop(part) for part in parts])
    return {**ours, **left}  # what is left is unknown, and `fill` says so


def to_hugging_face(clip: Clip) -> dict[str, Tensor]:
    state = clip.state_dict()
    if not isinstance(clip.shape.vision_layers, int):
        raise ValueError("the Hugging Face layout has no ResNet")
    theirs = {name: state[ours] for ours, name in RENAMED.items()}
    theirs |= {name: state[ours].T.contiguous() for ours, name in TRANSPOSED.items()}
    for ours, parts in block_names(clip.shape.text_layers, clip.shape.vision_layers).items():
        theirs |= dict(zip(parts, state[ours].chunk(len(parts)), strict=True))
    return {k: v.contiguous() for k, v in theirs.items()}


# Shape's field → its part of config.json, its name there, and its default, that of the original ViT-B/32.
IN_CONFIG: dict[str, tuple[str, str, Any]] = {
    "embed": ("", "projection_dim", 512),
    "image_size": ("vision", "image_size", 224),
    "patch": ("vision", "patch_size", 32),
    "vision_width": ("vision", "hidden_size", 768),
    "vision_layers": ("vision", "num_hidden_layers", 12),
    "vision_heads": ("vision", "num_attention_heads", 12),
    "context": ("text", "max_position_embeddings", 77),
    "vocab": ("text", "vocab_size", 49408),
    "text_width": ("text", "hidden_size", 512),
    "text_layers": ("text", "num_hidden_layers", 12),
    "text_heads": ("text", "num_attention_heads", 8),
    "act": ("text", "hidden_act", "quick_gelu"),
}


def shape_from_config(config: Mapping[str, Any]) -> Shape:
    if config.get("model_type", "clip") != "clip":
        raise UserError(f"config.json is of a {shortened(config['model_type'])} model; a CLIP is needed")
    parts = {"": config, **{part: group(config, f"{part}_config", "config.json") for part in ("text", "vision")}}
    shape = Shape(**{field: parts[part].get(name, default) for field, (part, name, default) in IN_CONFIG.items()})
    other = parts["vision"].get("hidden_act", "quick_gelu")
    if shape.act != other or shape.act not in ("quick_gelu", "gelu"):
        told = shortened(shape.act)
        raise UserError(f"activation {told} in config.json; quick_gelu or gelu, the same in both towers, is supported")
    for part, width in (("text", shape.text_width), ("vision", shape.vision_width)):
        inner = parts[part].get("intermediate_size", 4 * width)
        if type(width) is int and inner != 4 * width:
            raise UserError(f"intermediate_size {shortened(inner)} in config.json; 4 × {width} is supported")
    return shape


def config_of(shape: Shape, eot: int, sos: int) -> dict[str, Any]:
    parts: dict[str, dict[str, Any]] = {"": {}, "text": {}, "vision": {}}
    for field, (part, name, _) in IN_CONFIG.items():
        parts[part][name] = getattr(shape, field)
    for part, width in (("text", shape.text_width), ("vision", shape.vision_width)):
        common = {"hidden_act": shape.act, "projection_dim": shape.embed, "intermediate_size": 4 * width}
        parts[part] |= {"model_type": f"clip_{part}_model", **common}
    text = parts["text"] | {"bos_token_id": sos, "eos_token_id": eot, "pad_token_id": eot}
    top = {"architectures": ["CLIPModel"], "model_type": "clip", "logit_scale_init_value": 2.6592, **parts[""]}
    return {**top, "text_config": text, "vision_config": parts["vision"]}
