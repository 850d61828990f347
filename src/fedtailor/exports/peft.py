"""Low-rank deltas as PEFT's LoRA for transformers' CLIPModel: an adapter of a few kilobytes, CLIP not in it.

Ours are scaled by α/√r, which PEFT calls rank-stabilised (use_rslora).
"""

from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from ..base.documents import json_object
from ..clip.block import Deltas, LowRank
from ..clip.layouts import from_hugging_face, to_hugging_face
from ..clip.load import fill
from ..clip.model import Clip
from ..report.model_card import backbone
from .base import CannotExpress, Format, classified, write_classifier, write_json
from .linear import one_clip
from .source import Source
from .transformers import NO_RESNET

WEIGHTS, CONFIG = "adapter_model.safetensors", "adapter_config.json"
PREFIX = "base_model.model."
USAGE = """\
`clip` is the CLIP that this was made from, as transformers has it; `pixels` are pictures that were prepared for it.

```python
import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import CLIPModel

tuned = PeftModel.from_pretrained(CLIPModel.from_pretrained(clip), folder).eval()
classifier = load_file(f"{folder}/classifier.safetensors")
with torch.no_grad():
    z = tuned.visual_projection(tuned.vision_model(pixel_values=pixels).pooler_output)
z = torch.nn.functional.normalize(z, dim=-1)
logits = classifier["logit_scale"] * z @ classifier["weight"].T + classifier["bias"]  # a column for each class
```"""


class Peft(Format):
    what = "LoRA in PEFT's form, for transformers' CLIPModel"
    has_clip = False

    def __init__(self, source: Source) -> None:
        self.source, self.clip = source, source.model.clip
        if not isinstance(self.clip.shape.vision_layers, int):
            raise CannotExpress(NO_RESNET)
        self.found = one_clip(source, "transformers' CLIPModel")
        towers = {"vision": self.found.image_deltas, "text": next(iter(self.found.text_deltas), {})}
        self.deltas = {module: delta for tower, deltas in towers.items() for module, delta in named(tower, deltas)}
        if not self.deltas:
            raise CannotExpress("it has no low-rank deltas (tuner lora has)")
        sizes = {(len(A), scale, dropout) for A, _, scale, dropout in self.deltas.values()}
        if len(sizes) > 1:
            raise CannotExpress("its low-rank deltas differ in rank, scale or dropout")
        self.rank, self.scale, self.dropout = sizes.pop()

    def write(self, folder: Path) -> None:
        config = {
            "peft_type": "LORA",
            "task_type": None,
            "base_model_name_or_path": backbone(self.source.facts),
            "r": self.rank,
            "lora_alpha": round(self.scale * self.rank**0.5, 12),
            "use_rslora": True,
            "lora_dropout": self.dropout,
            "target_modules": sorted(self.deltas),
            "bias": "none",
            "fan_in_fan_out": False,
            "inference_mode": True,
        }
        write_json(folder / CONFIG, config)
        tensors = {}
        for module, delta in self.deltas.items():
            tensors[f"{PREFIX}{module}.lora_A.weight"] = delta.A.contiguous()
            tensors[f"{PREFIX}{module}.lora_B.weight"] = delta.B.contiguous()
        save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
        write_classifier(folder, self.found, self.clip.scale)

    def answer(self, folder: Path, pixels: Tensor) -> Tensor:
        config, tensors = json_object((folder / CONFIG).read_bytes()), load_file(folder / WEIGHTS)
        scale, weights = config["lora_alpha"] / config["r"] ** 0.5, to_hugging_face(self.clip)
        for module in config["target_modules"]:
            A, B = (tensors[f"{PREFIX}{module}.lora_{which}.weight"] for which in "AB")
            weights[f"{module}.weight"] = weights[f"{module}.weight"] + scale * B @ A
        with torch.device("meta"):
            clip = Clip(self.clip.shape)
        fill(clip, from_hugging_face(weights), folder)
        with torch.no_grad():
            return classified(folder, clip.freeze().vision(pixels))

    def usage(self) -> str:
        return USAGE


def named(tower: str, deltas: Deltas) -> Iterator[tuple[str, LowRank]]:
    """Of transformers' modules, those that have deltas."""
    for (layer, which), delta in deltas.items():
        matrix = "out" if which == "o" else which
        yield f"{tower}_model.encoder.layers.{layer}.self_attn.{matrix}_proj", delta
