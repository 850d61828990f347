"""What a format of exported models is, and the classifier matrix that most of them carry."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor

from ..base.errors import UserError

if TYPE_CHECKING:
    from .linear import Linear
    from .source import Source

CLASSIFIER = "classifier.safetensors"


class CannotExpress(UserError):  # noqa: N818  # as it reads
    """Why a model cannot be written in a format."""


class Format(ABC):
    """One source in one format. To make one is to find out whether that can be."""

    what: ClassVar[str]  # in a few words
    has_clip: ClassVar[bool] = True  # whether CLIP's weights are in it

    @abstractmethod
    def __init__(self, source: Source) -> None: ...

    @abstractmethod
    def write(self, folder: Path) -> None: ...

    @abstractmethod
    def answer(self, folder: Path, pixels: Tensor) -> Tensor:
        """(B, C) logits by what was written, read back."""

    @abstractmethod
    def usage(self) -> str:
        """For the card, as Markdown: how to use it."""

    def facts(self) -> dict[str, Any]:
        """What else export.json should say."""
        return {}

    def notes(self) -> list[str]:
        """What is otherwise than in fedtailor."""
        return []


def difference(got: Tensor, wanted: Tensor) -> float:
    """The largest one, relative to logits above 1."""
    return float(((got.double() - wanted.double()).abs() / wanted.double().abs().clamp(min=1)).max())


def write_classifier(folder: Path, found: Linear, scale: Tensor) -> None:
    """logits = logit_scale · z @ weight.T + bias: rows that are a sentence's are of length 1."""
    tensors = {"weight": found.weight / scale, "bias": found.bias, "logit_scale": scale.detach().reshape(())}
    save_file({name: value.contiguous() for name, value in tensors.items()}, folder / CLASSIFIER)


def classified(folder: Path, features: Tensor) -> Tensor:
    """(B, C) of image features (B, D), by the classifier in a folder."""
    it = load_file(folder / CLASSIFIER)
    with torch.no_grad():
        return it["logit_scale"] * F.normalize(features, dim=-1) @ it["weight"].T + it["bias"]


def write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")
