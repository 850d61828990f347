"""A state dict with OpenAI's and open_clip's names, beside a configuration of open_clip's form; a ViT or a ResNet."""

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from ..clip.layouts import to_openai
from ..clip.load import load
from ..clip.model import Shape
from ..use.model_file import Preprocessing
from .base import Format, classified, write_classifier, write_json
from .linear import one_clip
from .source import Source
from .transformers import resize_notes, write_tokenizer

WEIGHTS, CONFIG = "open_clip_model.safetensors", "open_clip_config.json"
VOCABULARY = 49408  # of open_clip's own tokenizer
USAGE = """\
```python
import torch
from PIL import Image
from safetensors.torch import load_file
import open_clip

clip, _, prepare = open_clip.create_model_and_transforms(f"local-dir:{folder}")
classifier = load_file(f"{folder}/classifier.safetensors")
clip.eval()
with torch.no_grad():
    z = clip.encode_image(prepare(Image.open(picture).convert("RGB"))[None], normalize=True)
logits = classifier["logit_scale"] * z @ classifier["weight"].T + classifier["bias"]  # a column for each class
```"""


class OpenClip(Format):
    what = "a state dict and a configuration for open_clip, with OpenAI's names"

    def __init__(self, source: Source) -> None:
        self.source, self.clip = source, source.model.clip
        self.found = one_clip(source, "open_clip's CLIP")

    def write(self, folder: Path) -> None:
        state = to_openai(self.found.clip(self.clip))
        save_file({name: value.detach() for name, value in state.items()}, folder / WEIGHTS, metadata={"format": "pt"})
        write_json(folder / CONFIG, config(self.clip.shape, self.source.facts.preprocessing))
        write_tokenizer(folder, self.source)
        write_classifier(folder, self.found, self.clip.scale)

    def answer(self, folder: Path, pixels: Tensor) -> Tensor:
        with torch.no_grad():
            return classified(folder, load(str(folder)).clip.vision(pixels))

    def usage(self) -> str:
        return USAGE

    def notes(self) -> list[str]:
        own = "this CLIP's vocabulary is its own: open_clip's tokenizer does not go with it, tokenizer.json does"
        notes = resize_notes(self.source.facts.preprocessing)
        return notes if self.clip.shape.vocab == VOCABULARY else [*notes, own]


def config(shape: Shape, it: Preprocessing) -> dict[str, Any]:
    resnet = not isinstance(shape.vision_layers, int)
    width = shape.vision_width
    vision = {
        "image_size": shape.image_size,
        "layers": shape.vision_layers,
        "width": width,
        "patch_size": None if resnet else shape.patch,
        "head_width": (32 * width if resnet else width) // shape.vision_heads,
    }
    text = {
        "context_length": shape.context,
        "vocab_size": shape.vocab,
        "width": shape.text_width,
        "heads": shape.text_heads,
        "layers": shape.text_layers,
    }
    crops = it.resize == "bicubic"
    pictures = {
        "mean": it.mean,
        "std": it.std,
        "interpolation": "bicubic" if crops else "bilinear",
        "resize_mode": "shortest" if crops else "squash",
    }
    model = {"embed_dim": shape.embed, "quick_gelu": shape.act == "quick_gelu", "vision_cfg": vision, "text_cfg": text}
    return {"model_cfg": model, "preprocess_cfg": pictures}
