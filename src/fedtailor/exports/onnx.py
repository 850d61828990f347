"""One ONNX graph from pixels to logits: the whole tuned image path, whatever is in it, and text features as constants.

The method's own prediction is traced, so that all there is to know of a method is whether it can be.
"""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor, nn

from ..base.errors import UserError
from ..clip.block import Rng
from ..clip.text import Layout
from ..core.bend import PLAIN, Bend
from .base import CannotExpress, Format
from .source import FromPixels, Source, turned_into
from .transformers import resize_notes

FILE = "model.onnx"
NEEDED = ("onnx", "onnxruntime", "onnxscript")
WHOLE = 1 << 30  # bytes of weights up to which the graph is one file; protobuf ends at twice as many
FOR_EACH = "every picture has class sentences of its own, and the graph would have a text tower for each"
ITERATES = "a prediction is searched for in steps, as many as a picture takes, and no fixed graph has that"
RESIZE = {
    "bicubic": """\
width, height = (size * side // min(image.size) for side in image.size)
left, top = round((width - size) / 2), round((height - size) / 2)
image = image.resize((width, height), Image.Resampling.BICUBIC).crop((left, top, left + size, top + size))""",
    "bilinear": "image = image.resize((size, size), Image.Resampling.BILINEAR)",
}
USAGE = """\
```python
import json
from pathlib import Path
import numpy as np
import onnxruntime
from PIL import Image

facts = json.loads(Path(folder, "export.json").read_text())
size, mean, std = (facts["preprocessing"][name] for name in ("size", "mean", "std"))
image = Image.open(picture).convert("RGB")
{resize}
pixels = ((np.asarray(image) / 255 - mean) / std).transpose(2, 0, 1)[None].astype(np.float32)  # (B, 3, S, S)

session = onnxruntime.InferenceSession(Path(folder, "model.onnx"))
(logits,) = session.run(None, {{"pixels": pixels}})  # (B, C), a column for each class
calm = logits / facts["temperature"]
p = np.exp(calm - calm.max(axis=1, keepdims=True))
p /= p.sum(axis=1, keepdims=True)
print([facts["classes"][c] for c in p.argmax(axis=1)])
```"""


@dataclass(frozen=True)
class Traced(FromPixels):
    """Takes text features, in the order in which they were asked for before, as they were then; and goes through an
    image tower that nothing bends once, however often it is asked."""

    known: list[Tensor] = field(default_factory=list)
    left: list[Tensor] = field(default_factory=list)
    plain: dict[str, Tensor] = field(default_factory=dict)

    def begin(self) -> None:
        self.left[:] = self.known
        self.plain.clear()

    def tower(self, x: Tensor, stop: str, bend: Bend = PLAIN, rng: Rng = None) -> Tensor:
        if bend.prompts or bend.image_deltas:
            return super().tower(x, stop, bend, rng)
        if stop not in self.plain:
            self.plain[stop] = super().tower(x, stop, bend, rng)
        return self.plain[stop]

    def tuned_text(self, layout: Layout, bend: Bend, rng: Rng = None) -> Tensor:
        if self.left:
            return self.left.pop(0)
        self.known.append(super().tuned_text(layout, bend, rng))
        return self.known[-1]

    def cosines(self, bend: Bend, rows: Callable[[Tensor], Tensor], z: Tensor, rng: Rng = None) -> Tensor:
        raise CannotExpress(FOR_EACH)


class Graph(nn.Module):
    def __init__(self, source: Source) -> None:
        super().__init__()
        self.ask, self.theta = source.predict, source.theta
        self.vision = source.model.clip.vision  # whose weights are then named in the graph
        self.model = turned_into(Traced, source.model, memo=None)

    def forward(self, pixels: Tensor) -> Tensor:
        self.model.begin()
        return self.ask(self.model, self.theta, pixels)


class Onnx(Format):
    what = "one ONNX graph, from pixels to logits"

    def __init__(self, source: Source) -> None:
        self.source, size = source, source.tuned.backbone.clip.shape.image_size
        if source.tuned.method.iterates:
            raise CannotExpress(ITERATES)
        self.graph, self.pixels = Graph(source).eval(), torch.zeros(2, 3, size, size)
        with plainly():
            self.graph(self.pixels)  # text features, once; what no graph has shows here

    def write(self, folder: Path) -> None:
        if missing := [name for name in NEEDED if find_spec(name) is None]:
            raise UserError(f"ONNX needs {', '.join(missing)}: pip install 'fedtailor[export]'")
        batch = torch.export.Dim("batch", min=1)
        with plainly():
            try:
                traced = torch.export.export(self.graph, (self.pixels,), dynamic_shapes=({0: batch},), strict=False)
                made = torch.onnx.export(
                    traced, dynamo=True, input_names=["pixels"], output_names=["logits"], verbose=False
                )
            except Exception as error:  # torch raises many kinds, of any method that is not ours
                told = str(error).partition("\n")[0]
                raise UserError(f"torch cannot make one graph of {self.source.title}: {told}") from error
        assert made is not None
        facts = self.source.facts
        made.model.metadata_props.update(
            classes=json.dumps(self.source.tuned.classes, ensure_ascii=False),
            preprocessing=facts.preprocessing.model_dump_json(),
            temperature=str(self.source.tuned.temperature(self.source.client)),
        )
        weights = sum(value.numel() * value.element_size() for value in self.graph.vision.state_dict().values())
        made.save(folder / FILE, external_data=weights > WHOLE)

    def answer(self, folder: Path, pixels: Tensor) -> Tensor:
        import onnxruntime

        session = onnxruntime.InferenceSession(str(folder / FILE), providers=["CPUExecutionProvider"])
        return torch.from_numpy(session.run(None, {"pixels": pixels.numpy()})[0])

    def usage(self) -> str:
        how = self.source.facts.preprocessing.resize
        return USAGE.format(resize=RESIZE.get(how, RESIZE["bilinear"]))

    def notes(self) -> list[str]:
        return resize_notes(self.source.facts.preprocessing)


@contextmanager
def plainly() -> Iterator[None]:
    """Torch's own operators, which ONNX knows; and without the exporter's talk of itself."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(action="ignore"), torch.backends.mkldnn.flags(enabled=False):
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
