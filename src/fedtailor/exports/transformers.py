"""A folder that Hugging Face transformers' CLIPModel reads, low-rank deltas inside its weights."""

import shutil
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..clip.load import load, locate, save_folder
from ..clip.tokenizer import EOT, SOS
from ..use.model_file import Preprocessing
from .base import CannotExpress, Format, classified, write_classifier, write_json
from .linear import one_clip
from .source import Source

TOKENIZER = ("tokenizer_config.json", "special_tokens_map.json", "vocab.json", "merges.txt")
ODD = "where a margin is odd, transformers' crop may be one pixel further left or up than fedtailor's"
LATE = "this run resized pictures after it had normalised them, other libraries do so before: rounding may differ"
NO_RESNET = "transformers' CLIP has no ResNet, and this one has one"
USAGE = """\
```python
import torch
from PIL import Image
from safetensors.torch import load_file
from transformers import AutoImageProcessor, CLIPModel

clip, prepare = CLIPModel.from_pretrained(folder), AutoImageProcessor.from_pretrained(folder)
classifier = load_file(f"{folder}/classifier.safetensors")
with torch.no_grad():
    seen = clip.vision_model(**prepare(Image.open(picture).convert("RGB"), return_tensors="pt"))
    z = torch.nn.functional.normalize(clip.visual_projection(seen.pooler_output), dim=-1)
logits = classifier["logit_scale"] * z @ classifier["weight"].T + classifier["bias"]  # a column for each class
```"""


class Transformers(Format):
    what = "a folder for Hugging Face transformers' CLIPModel"

    def __init__(self, source: Source) -> None:
        self.source, self.clip = source, source.model.clip
        if not isinstance(self.clip.shape.vision_layers, int):
            raise CannotExpress(NO_RESNET)
        self.found = one_clip(source, "transformers' CLIPModel")

    def write(self, folder: Path) -> None:
        words = self.source.tuned.backbone.tokenizer
        save_folder(self.found.clip(self.clip), folder, words.eot, words.sos)
        write_tokenizer(folder, self.source)
        write_json(folder / "preprocessor_config.json", preprocessor(self.source.facts.preprocessing))
        write_classifier(folder, self.found, self.clip.scale)

    def answer(self, folder: Path, pixels: Tensor) -> Tensor:
        with torch.no_grad():
            return classified(folder, load(str(folder)).clip.vision(pixels))

    def usage(self) -> str:
        return USAGE

    def notes(self) -> list[str]:
        it = self.source.facts.preprocessing
        return [ODD] if it.resize == "bicubic" else resize_notes(it)


def write_tokenizer(folder: Path, source: Source) -> None:
    """The backbone's own, with what its folder says about it."""
    checkpoint = source.tuned.backbone
    checkpoint.tokenizer.inner.save(str(folder / "tokenizer.json"))
    there, _ = locate(checkpoint.name)
    for name in TOKENIZER:
        if (there / name).is_file():
            shutil.copyfile(there / name, folder / name)
    if not (folder / TOKENIZER[0]).is_file():
        marks = {"bos_token": SOS, "eos_token": EOT, "pad_token": EOT, "unk_token": EOT}
        how = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": checkpoint.clip.shape.context}
        write_json(folder / TOKENIZER[0], {**how, **marks})  # as tokenizer.json says, whatever it is


def preprocessor(it: Preprocessing) -> dict[str, Any]:
    """What CLIPImageProcessor reads."""
    square = {"height": it.size, "width": it.size}
    crops = it.resize == "bicubic"
    return {
        "image_processor_type": "CLIPImageProcessor",
        "do_convert_rgb": True,
        "do_resize": True,
        "size": {"shortest_edge": it.size} if crops else square,
        "resample": 3 if crops else 2,  # Pillow's bicubic, bilinear
        "do_center_crop": crops,
        "crop_size": square,
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": list(it.mean),
        "image_std": list(it.std),
    }


def resize_notes(it: Preprocessing) -> list[str]:
    """Of what other libraries do before a picture gets to the tower."""
    return [LATE] if it.resize == "late" else []
