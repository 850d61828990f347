"""What is exported: a tuned model, the shared one or a client's own, as a function of pixels."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, TypeVar

import torch
from torch import Tensor

from ..core.model import Model
from ..core.types import Params
from ..use.load import load
from ..use.model import Predict, TunedModel
from ..use.model_file import ModelFacts

M = TypeVar("M", bound=Model)


@dataclass(frozen=True)
class FromPixels(Model):
    """Begins at the pixels, whatever its tuner leaves alone."""

    @cached_property
    def stage(self) -> str:
        return "pixels"


def turned_into(kind: type[M], model: Model, **changes: Any) -> M:
    """The same model of another kind."""
    return kind(**{field.name: getattr(model, field.name) for field in fields(Model)} | changes)


@dataclass(frozen=True)
class Source:
    tuned: TunedModel
    client: int | None
    theta: Params
    predict: Predict

    @classmethod
    def of(cls, tuned: TunedModel, client: int | str | None) -> Source:
        if tuned.device != "cpu":
            tuned = replace(load(tuned.folder, backbone=tuned.backbone.name, device="cpu"), added=tuned.added)
        return cls(tuned, tuned.number(client), *tuned.parameters(client))

    @property
    def facts(self) -> ModelFacts:
        return self.tuned.facts

    @cached_property
    def model(self) -> FromPixels:
        """In fp32, as everything is that is exported; text features are computed once."""
        return turned_into(FromPixels, self.tuned.model, precision="fp32", memo={})

    def logits(self, pixels: Tensor, model: Model | None = None) -> Tensor:
        """(B, C); of another kind of model, what that takes for pictures."""
        with torch.no_grad():
            return self.predict(model or self.model, self.theta, pixels)

    @property
    def title(self) -> str:
        return f"{self.facts.method['name']} with tuner {self.facts.tuner['name']}"

    @property
    def whose(self) -> str:
        if self.client is None:
            return "the shared model"
        name = self.tuned.clients[self.client]
        return f"{name}'s own model" if self.tuned.has_own(self.client) else f"{name}'s model, which is the shared one"
