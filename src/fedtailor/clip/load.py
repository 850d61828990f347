"""Checkpoints: a hub id, a Hugging Face CLIP folder, or a state dict in OpenAI's layout, all as safetensors.

Every layout is translated into ours key by key; a key that is unknown, missing or of another shape is an error that
names it. Pickled checkpoints (.pt, .bin) are refused, since reading one may run the code that is in it.
"""

import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from ..base.documents import read_json
from ..base.errors import UserError, shortened
from ..base.folders import user_path
from ..data.paper import Triple
from .layouts import ANOTHER, config_of, to_hugging_face, to_openai, translate
from .model import Clip
from .tokenizer import Tokenizer

BUNDLED = "bundled"
LAB = {"lab-vit": "vit", "lab-rn": "rn"}  # in a clone's lab/, not in the installed package
HUB_FILES = ["*.json", "*.txt", "*.safetensors"]


@dataclass(frozen=True)
class Checkpoint:
    """A frozen CLIP, its tokenizer, and the hash of its weights (a client checks it against the server's)."""

    name: str
    clip: Clip
    tokenizer: Tokenizer
    mean: Triple
    std: Triple
    digest: str


def load(name: str = BUNDLED) -> Checkpoint:
    """Open a backbone: `bundled`, one of LAB, a folder, a .safetensors file in OpenAI's layout, or a hub id."""
    folder, weights = locate(name)
    try:
        state = load_file(weights)
    except (SafetensorError, OSError) as error:
        raise UserError(f"{weights} is not a readable safetensors file: {error}") from error
    shape, ours = translate(state, folder, weights)
    with torch.device("meta"):  # no memory for weights that are replaced at once
        clip = Clip(shape)
    fill(clip, ours, weights)
    mean, std = normalisation(folder)
    return Checkpoint(name, clip.freeze(), Tokenizer.open(folder, shape), mean, std, digest(clip))


def locate(name: str) -> tuple[Path, Path]:
    """The folder of a checkpoint and its weights file."""
    if name == BUNDLED:
        folder = Path(str(resources.files("fedtailor.clip") / "bundled"))
    elif name in LAB:
        folder = Path(__file__).parents[3] / "lab" / LAB[name]
        if not folder.is_dir():
            raise UserError(
                f"{name} comes with a clone, not with the package: pip install -e . there, or give its folder"
            )
    elif user_path(name).exists():
        folder = user_path(name)
    elif re.fullmatch(r"[\w.-]+/[\w.-]+", name):
        folder = download(name)
    else:
        raise UserError(
            f"backbone {name!r}: there is no such folder or .safetensors file, "
            "and it is not 'bundled' or a hub id owner/name"
        )
    if folder.is_file():
        refuse_pickle(folder)
        return folder.parent, folder
    for stem in ("model", "open_clip_model", "open_clip_pytorch_model"):
        if (weights := folder / f"{stem}.safetensors").is_file():
            return folder, weights
    for file in sorted(folder.glob("*")):
        if file.name == "model.safetensors.index.json":
            raise UserError(f"{folder} is split over several safetensors files; save it as one model.safetensors")
        refuse_pickle(file)
    raise UserError(f"no model.safetensors in {folder}")


def refuse_pickle(file: Path) -> None:
    if file.suffix in {".pt", ".bin", ".pth", ".ckpt"}:
        raise UserError(
            f"{file.name} is a pickle, and opening one can run code; convert it once, where you trust it, "
            "with safetensors.torch.save_file(state_dict, 'model.safetensors')"
        )


def download(name: str, revision: str | None = None) -> Path:
    try:
        from huggingface_hub import snapshot_download
    except ImportError as error:
        raise UserError(
            f"backbone {name!r} is a hub id: pip install 'fedtailor[hub]', or give a local folder"
        ) from error
    try:
        return Path(snapshot_download(name, revision=revision, allow_patterns=HUB_FILES))
    except Exception as error:  # the hub raises a dozen unrelated kinds; each says what failed
        todo = "try again with a network, or give a folder: backbone=PATH"
        raise UserError(f"could not fetch {name!r} from the hub ({type(error).__name__}: {error}); {todo}") from error


def fill(clip: Clip, ours: Mapping[str, Tensor], source: Path | str) -> None:
    """Load exactly these weights: no key too many, none too few, every shape right."""
    wanted = clip.state_dict()
    problems = [f"missing {k}" for k in wanted if k not in ours and not k.endswith("num_batches_tracked")]
    problems += [f"unknown {k}" for k in ours if k not in wanted]
    wrong = [k for k in wanted if k in ours and ours[k].shape != wanted[k].shape]
    problems += [f"{k} is {tuple(ours[k].shape)}, should be {tuple(wanted[k].shape)}" for k in wrong]
    problems += [f"{k} is in {v.dtype}, floats are due" for k, v in ours.items() if not v.is_floating_point()]
    if problems:
        more = f" … and {len(problems) - 10} more" if len(problems) > 10 else ""
        raise UserError(f"{source} does not fit: " + "; ".join(problems[:10]) + more)
    counters = {k: torch.tensor(0) for k in wanted if k.endswith("num_batches_tracked")}
    clip.load_state_dict({**counters, **{k: v.float() for k, v in ours.items()}}, assign=True)
    values = {**clip.state_dict(), "the exponential of logit_scale": clip.scale}
    if broken := [name for name, value in values.items() if not value.isfinite().all()]:
        raise UserError(f"{source} is damaged: not all is a number in {', '.join(broken[:3])}; {ANOTHER}")


def save_folder(clip: Clip, folder: Path, eot: int, sos: int, dtype: torch.dtype = torch.float32) -> None:
    """Write config.json and model.safetensors in Hugging Face's layout; a ResNet, which that lacks, in OpenAI's."""
    folder.mkdir(parents=True, exist_ok=True)
    if isinstance(clip.shape.vision_layers, int):
        (folder / "config.json").write_text(json.dumps(config_of(clip.shape, eot, sos), indent=2) + "\n")
        names = to_hugging_face(clip)
    else:
        names = to_openai(clip)
    state = {k: v.detach().to(dtype) for k, v in names.items()}
    save_file(state, os.fspath(folder / "model.safetensors"), metadata={"format": "pt"})


# What every published CLIP was trained with.
CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
CLIP_STD = (0.26862954, 0.26130258, 0.27577711)


def normalisation(folder: Path) -> tuple[Triple, Triple]:
    file = folder / "preprocessor_config.json"
    config = read_json(file, ANOTHER) if file.is_file() else {}
    return triple(config, "image_mean", CLIP_MEAN, -100, file), triple(config, "image_std", CLIP_STD, 1e-4, file)


def triple(config: Mapping[str, Any], name: str, default: Triple, least: float, file: Path) -> Triple:
    """A number for each colour."""
    found = config.get(name, default)
    if not isinstance(found, list | tuple) or len(found) != 3 or not all(within(value, least) for value in found):
        raise UserError(f"{file}: {name} should be three numbers from {least:g} to 100, got {shortened(found)}")
    return (found[0], found[1], found[2])


def within(value: object, least: float) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and least <= value <= 100


def digest(clip: Clip) -> str:
    """A hash of every weight, whatever file they came from."""
    total = hashlib.sha256()
    for name, value in sorted(clip.state_dict().items()):
        total.update(name.encode() + value.detach().cpu().numpy().tobytes())
    return total.hexdigest()
