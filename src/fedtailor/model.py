"""A frozen CLIP, a tuner and the class names: all that a method needs to turn parameters and images into logits."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from .clip.load import Checkpoint
from .clip.model import Clip
from .clip.text import Layout, arrange, pack, tokens
from .clip.tokenize import Tokenizer
from .tuners.base import Plan, Tuner

if TYPE_CHECKING:
    from .core import Batch, Params, View

CPU = torch.device("cpu")
PRECISIONS = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class Words:
    """The class names as tokens, and the hand-written sentence of each."""

    names: tuple[tuple[int, ...], ...]
    sentences: tuple[tuple[int, ...], ...]  # the template around each name
    period: tuple[int, ...]
    sos: int
    eot: int

    @classmethod
    def of(cls, tokenizer: Tokenizer, classes: Sequence[str], template: str) -> Words:
        names = [name.replace("_", " ") for name in classes]
        return cls(
            names=tuple(tuple(tokenizer(name)) for name in names),
            sentences=tuple(tuple(tokenizer(template.format(name))) for name in names),
            period=tuple(tokenizer(".")),
            sos=tokenizer.sos,
            eot=tokenizer.eot,
        )


@dataclass(frozen=True)
class Model:
    clip: Clip
    tuner: Tuner
    words: Words
    tokenizer: Tokenizer | None = None  # only for contexts that start as words
    device: torch.device = CPU
    precision: str = "fp32"
    memo: dict[tuple[tuple[str, int], ...], tuple[Tensor, Params]] | None = None

    @classmethod
    def of(
        cls,
        checkpoint: Checkpoint,
        tuner: Tuner,
        classes: Sequence[str],
        template: str,
        device: str = "cpu",
        precision: str = "fp32",
    ) -> Model:
        words = Words.of(checkpoint.tokenizer, classes, template)
        place = torch.device(device)
        return cls(checkpoint.clip.to(place), tuner, words, checkpoint.tokenizer, place, precision)

    @property
    def classes(self) -> int:
        return len(self.words.names)

    @cached_property
    def stage(self) -> str:
        """Where this tuner enters the image tower: everything before is the same for ever, and cached."""
        return self.tuner.stage(self.clip)

    @cached_property
    def layout(self) -> Layout:
        """The class sentences with the tuner's learned rows in them; the plain template if it has none."""
        return self.arranged(self.tuner.plan(self))

    @cached_property
    def layouts(self) -> dict[str, Layout]:
        """The same, and with only the rows that all classes share or only each class's own."""
        plan = self.tuner.plan(self)
        return {
            "both": self.layout,
            "shared": self.arranged(replace(plan, own=0)),
            "own": self.arranged(replace(plan, shared=0)),
        }

    def arranged(self, plan: Plan) -> Layout:
        if plan.shared == plan.own == 0:
            return self.template_layout
        w = self.words
        return pack(
            [
                arrange(
                    name, sos=w.sos, eot=w.eot, shared=plan.shared, own=plan.own, before=plan.before, after=w.period,
                    position=plan.position,
                )
                for name in w.names
            ]
        ).to(self.device)  # fmt: skip

    @cached_property
    def template_layout(self) -> Layout:
        return pack([tokens([self.words.sos, *s, self.words.eot]) for s in self.words.sentences]).to(self.device)

    @cached_property
    def zero_shot(self) -> Tensor:
        """(C, D) normalised text features of the hand-written sentences."""
        with torch.no_grad(), self.cast():
            return F.normalize(self.clip.text(self.template_layout).float(), dim=-1)

    def cast(self) -> AbstractContextManager[object]:
        dtype = PRECISIONS[self.precision]
        return nullcontext() if dtype is None else torch.autocast(self.device.type, dtype)

    def put(self, x: Tensor) -> Tensor:
        return x.to(self.device)

    def init(self, rng: torch.Generator) -> Params:
        return self.tuner.init(self, rng)

    def image(self, theta: Params, x: Tensor, rng: torch.Generator | None = None) -> Tensor:
        """(B, D) normalised; x is at this model's stage."""
        bend = self.tuner.bend(theta)
        features = self.put(x)
        if self.stage != "features":
            with self.cast():
                features = self.clip.vision(features, self.stage, "features", bend.prompts, bend.image_deltas, rng)
        features = features.float()
        for gate in bend.gates:
            features = gate(features)
        return F.normalize(features, dim=-1)

    def text(self, theta: Params, rng: torch.Generator | None = None, rows: str = "both") -> Tensor:
        """(C, D) normalised; of sentences with all learned rows, only the "shared" ones or only each class's "own"."""
        bend = self.tuner.bend(theta)
        if rows == "shared":
            bend = replace(bend, own=None)
        elif rows == "own":
            bend = replace(bend, shared=None, deep={})
        if bend.leaves_text:
            return self.zero_shot
        key = (("rows " + rows, 0), *((name, id(value)) for name, value in theta.items()))
        if self.memo is not None and key in self.memo:
            return self.memo[key][0]
        with self.cast():
            features = self.clip.text(self.layouts[rows], bend.shared, bend.own, bend.deep, bend.text_deltas, rng)
        normal = F.normalize(features.float(), dim=-1)
        if self.memo is not None:
            self.memo[key] = normal, theta  # theta is held so that no other tensor can get its ids
        return normal

    def logits(self, theta: Params, x: Tensor, rng: torch.Generator | None = None) -> Tensor:
        """(B, C): the cosines times CLIP's frozen scale."""
        return self.clip.scale * self.image(theta, x, rng) @ self.text(theta, rng).T

    def zero_shot_logits(self, x: Tensor) -> Tensor:
        """(B, C) of CLIP as it is, from images at this model's stage."""
        with torch.no_grad():
            features = self.put(x)
            if self.stage != "features":
                with self.cast():
                    features = self.clip.vision(features, self.stage, "features")
            return self.clip.scale * F.normalize(features.float(), dim=-1) @ self.zero_shot.T

    def teacher(self, view: View | Batch) -> Tensor:
        """(B, C) of CLIP as it is, from cached features where there are any."""
        if view.plain is None:
            return self.zero_shot_logits(view.x)
        return self.clip.scale * F.normalize(self.put(view.plain), dim=-1) @ self.zero_shot.T

    def remembering(self) -> Model:
        """For an evaluation, in which no parameter changes: the same model, computing each text matrix once."""
        other = replace(self, memo={})
        frozen = ("stage", "layout", "layouts", "template_layout", "zero_shot")
        other.__dict__.update({name: self.__dict__[name] for name in frozen if name in self.__dict__})
        return other
