"""A classifier matrix and the image tower under it, with a file of Python that needs only torch to use them."""

import shutil
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from ..tuners.adapter import AttentionGate
from . import classify
from .base import CannotExpress, Format, write_classifier
from .linear import linear_form
from .source import Source

USAGE = """\
`python classify.py photo.jpg` says what is in a picture. From Python, in this folder:

```python
from classify import Classifier
from PIL import Image

model = Classifier(folder)
probabilities = model.probabilities([Image.open(picture)])  # a row a picture, a column for each of model.classes
```

The matrix alone, with numpy, for features that were computed elsewhere:

```python
import json
from pathlib import Path
import numpy as np
from safetensors.numpy import load_file

it = load_file(f"{folder}/classifier.safetensors")
z = features / np.linalg.norm(features, axis=1, keepdims=True)
logits = it["logit_scale"] * z @ it["weight"].T + it["bias"]
calm = logits / json.loads(Path(folder, "export.json").read_text())["temperature"]
p = np.exp(calm - calm.max(axis=1, keepdims=True))
p /= p.sum(axis=1, keepdims=True)
```"""


class ClassifierMatrix(Format):
    what = "a classifier matrix and the image tower, for torch or numpy alone"

    def __init__(self, source: Source) -> None:
        self.source, self.clip = source, source.model.clip
        self.found = linear_form(source)
        gates = self.found.gates
        self.gates = [gate for gate in gates if isinstance(gate, AttentionGate)]
        if len(self.gates) < len(gates):
            raise CannotExpress("it does to image features what only its tuner knows")

    def write(self, folder: Path) -> None:
        tower = self.found.clip(self.clip).vision.state_dict()
        tower = {name: value for name, value in tower.items() if not name.endswith("num_batches_tracked")}
        tower |= {f"prompt.{i}": prompt.tokens for i, prompt in enumerate(self.found.prompts.values())}
        for i, gate in enumerate(self.gates):
            tower |= {f"gate.{i}.{name}": value for name, value in vars(gate).items()}
        save_file(
            {name: value.detach().contiguous() for name, value in tower.items()}, folder / "image_tower.safetensors"
        )
        write_classifier(folder, self.found, self.clip.scale)
        shutil.copyfile(classify.__file__, folder / "classify.py")

    def facts(self) -> dict[str, Any]:
        shape, prompts = self.clip.shape, self.found.prompts.items()
        return {
            "image_tower": {
                "kind": "vit" if isinstance(shape.vision_layers, int) else "resnet",
                "layers": shape.vision_layers,
                "heads": shape.vision_heads,
                "act": shape.act,
                "prompts": [{"layer": at, "replace": prompt.replace, "keep": prompt.keep} for at, prompt in prompts],
                "gates": len(self.gates),
            }
        }

    def answer(self, folder: Path, pixels: Tensor) -> Tensor:
        return classify.Classifier(folder).logits(pixels)

    def usage(self) -> str:
        return USAGE
