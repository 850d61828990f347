"""A tuned model in other libraries' formats, by name. A new one is a file with a `Format`, and a line here."""

from .base import Format
from .classifier import ClassifierMatrix
from .onnx import Onnx
from .open_clip import OpenClip
from .peft import Peft
from .transformers import Transformers

FORMATS: dict[str, type[Format]] = {
    "transformers": Transformers,
    "open_clip": OpenClip,
    "peft": Peft,
    "classifier": ClassifierMatrix,
    "onnx": Onnx,
}
