"""A frozen CLIP, a tuner and the class names: all that a method needs to turn parameters and images into logits."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

import torch
import torch.nn.functional as F
from pydantic import BaseModel, ConfigDict
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from ..base.errors import UserError
from ..clip.block import Rng
from ..clip.load import Checkpoint
from ..clip.model import Clip
from ..clip.text import Layout, Slot, arrange, pack, tokens
from ..clip.tokenizer import Tokenizer
from .bend import PLAIN, Bend, Context
from .calls import ImageCall, TextCall
from .lockstep import ask
from .types import Batch, Params, View

CPU = torch.device("cpu")
TEXT_BYTES = 256 << 20  # of text activations held at once where each image has sentences of its own
PRECISIONS = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}


def to_device(x: Tensor, device: torch.device) -> Tensor:
    """A GPU fetches it from pinned memory while the processor goes on."""
    if device.type == "cuda" and x.device == CPU:
        return x.pin_memory().to(device, non_blocking=True)
    return x.to(device)


class Tuner(BaseModel, ABC):
    """How parameters bend a frozen CLIP. Its fields are its settings."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    acts_on: ClassVar[frozenset[str]] = frozenset()

    def touches(self) -> frozenset[str]:
        """Some of "text" and "image" (the towers), "features" (of images) and "classifier" (in place of sentences)."""
        return self.acts_on

    def stage(self, clip: Clip) -> str:
        """The last stage of the image tower that this tuner leaves alone."""
        return "features"

    def note(self, clip: Clip) -> str:
        """What it does otherwise on this CLIP than on others, for those who read the numbers."""
        return ""

    def context(self, model: Model) -> Context:
        """The learned rows that it puts into the class sentences."""
        return Context()

    def class_rows(self) -> tuple[str, ...]:
        """Patterns of parameters with a row for each class, whose first values serve a class that is added later."""
        return ()

    @abstractmethod
    def init(self, model: Model, rng: torch.Generator) -> Params: ...

    @abstractmethod
    def bend(self, theta: Params, model: Model) -> Bend: ...


@dataclass(frozen=True)
class Words:
    """The class names as tokens, and the hand-written sentence of each."""

    names: tuple[tuple[int, ...], ...]
    sentences: tuple[tuple[int, ...], ...]  # the template around each name
    period: tuple[int, ...]
    sos: int
    eot: int


@dataclass(frozen=True)
class Model:
    clip: Clip
    tuner: Tuner
    words: Words
    tokenizer: Tokenizer | None = None  # only for contexts that start as words
    device: torch.device = CPU
    precision: str = "fp32"
    reads: str = "features"  # what a method asks of the image tower; "patches": every projected token
    budget: float = math.inf  # bytes of activations that a step may keep; half of them for each tower
    memo: dict[tuple[object, ...], tuple[Tensor, Params]] | None = None

    @classmethod
    def of(
        cls,
        checkpoint: Checkpoint,
        tuner: Tuner,
        classes: Sequence[str],
        template: str,
        device: str = "cpu",
        precision: str = "fp32",
        reads: str = "features",
        budget: float = math.inf,
    ) -> Model:
        tokenizer, place, spelled = checkpoint.tokenizer, torch.device(device), [c.replace("_", " ") for c in classes]
        names, sentences = (tuple(tuple(tokenizer(form.format(name))) for name in spelled) for form in ("{}", template))
        words = Words(names, sentences, tuple(tokenizer(".")), tokenizer.sos, tokenizer.eot)
        return cls(checkpoint.clip.to(place), tuner, words, tokenizer, place, precision, reads, budget)

    @property
    def classes(self) -> int:
        return len(self.words.names)

    @cached_property
    def stage(self) -> str:
        """Where this tuner enters the image tower: what comes before never changes, and is cached."""
        first = self.tuner.stage(self.clip)
        return self.reads if first == "features" else first

    @cached_property
    def layout(self) -> Layout:
        """The class sentences with the tuner's learned rows in them; the plain template if it has none."""
        return self.layout_of("both")

    def layout_of(self, *sets: str) -> Layout:
        """Of the sentences with all learned rows ("both"), only the "shared" ones, only each class's "own"; or of
        several such sets at once, which then go through the tower together."""
        if sets not in self.layouts:
            sentences = [sentence for rows in sets for sentence in self.sentences(rows)]
            self.layouts[sets] = pack(sentences, self.device, self.classes)
        return self.layouts[sets]

    @cached_property
    def layouts(self) -> dict[tuple[str, ...], Layout]:
        return {}

    def check_room(self) -> None:
        """That the text tower has a place for each token of a class sentence; the tokenizer sees to plain ones."""
        context, w, room = self.tuner.context(self), self.words, self.clip.text.context
        learned = context.shared + context.own
        needed = 2 + learned + len(context.before) + len(w.period) + max(map(len, w.names))
        if learned and needed > room:
            raise UserError(
                f"the longest class sentence would be {needed} tokens, {learned} of them learned context, and this "
                f"text tower holds {room}; make the tuner's length {needed - room} smaller, or shorten the class names"
            )

    def sentences(self, rows: str) -> list[list[Slot]]:
        context, w = self.tuner.context(self), self.words
        if rows != "both":
            context = replace(context, own=0) if rows == "shared" else replace(context, shared=0)
        if context.shared == context.own == 0:
            return [tokens([w.sos, *ids, w.eot]) for ids in w.sentences]
        return [arrange(name, sos=w.sos, eot=w.eot, after=w.period, **vars(context)) for name in w.names]

    @cached_property
    def template_layout(self) -> Layout:
        return self.sentence_layout(self.words.sentences)

    def sentence_layout(self, sentences: Sequence[Sequence[int]]) -> Layout:
        return pack([tokens([self.words.sos, *ids, self.words.eot]) for ids in sentences], self.device)

    @cached_property
    def zero_shot(self) -> Tensor:
        """(C, D) normalised text features of the hand-written sentences."""
        return self.frozen_text(self.template_layout)

    @cached_property
    def names(self) -> Tensor:
        """(C, D) normalised text features of the bare class names."""
        return self.frozen_text(self.sentence_layout(self.words.names))

    def frozen_text(self, layout: Layout) -> Tensor:
        with torch.no_grad(), self.cast():
            return F.normalize(self.clip.text(layout).float(), dim=-1)

    def cast(self) -> AbstractContextManager[object]:
        dtype = PRECISIONS[self.precision]
        return nullcontext() if dtype is None else torch.autocast(self.device.type, dtype)

    def put(self, x: Tensor) -> Tensor:
        return to_device(x, self.device)

    def init(self, rng: torch.Generator) -> Params:
        return self.tuner.init(self, rng)

    def bend(self, theta: Params) -> Bend:
        return self.tuner.bend(theta, self)

    def tower(self, x: Tensor, stop: str, bend: Bend = PLAIN, rng: Rng = None) -> Tensor:
        """The image tower from this model's stage on; (B, D) features, or (B, 1 + L, D) patches with those first."""
        x = self.put(x)
        if self.stage == "patches":
            return (x[:, 0] if stop == "features" else x).float()
        if self.stage == stop:
            return x.float()
        return ask(ImageCall(self.clip.vision, self.cast, x, self.stage, stop, bend, rng, self.budget / 2))

    def features(self, theta: Params, x: Tensor, rng: Rng = None) -> Tensor:
        """(B, D), what a head reads; x is at this model's stage."""
        bend = self.bend(theta)
        features = self.tower(x, "features", bend, rng) if bend.net is None else bend.net(self.put(x), rng)
        for gate in bend.gates:
            features = gate(features)
        return features

    def image(self, theta: Params, x: Tensor, rng: Rng = None) -> Tensor:
        """(B, D) normalised."""
        return F.normalize(self.features(theta, x, rng), dim=-1)

    def patches(self, theta: Params, x: Tensor, rng: Rng = None) -> Tensor:
        """(B, L, D) every patch's projected token, normalised; for methods that read them (Method.reads)."""
        return F.normalize(self.tower(x, "patches", self.bend(theta), rng)[:, 1:], dim=-1)

    def text(self, theta: Params, rng: Rng = None) -> Tensor:
        """(C, D) normalised."""
        return self.texts(theta, ("both",), rng)["both"]

    def texts(self, theta: Params, sets: Sequence[str], rng: Rng = None) -> dict[str, Tensor]:
        """(C, D) normalised, of each set of sentences: with all learned rows ("both"), only the "shared" ones, or only
        each class's "own". They go through the tower together."""
        bend = self.bend(theta)
        learned = {"shared": bend.shared is not None, "own": bend.own is not None}
        learned["both"] = any(learned.values())
        tuned = tuple(rows for rows in sets if learned[rows] or bend.text_deltas)
        key = (tuned, *((name, id(value)) for name, value in theta.items()))
        found = self.memo.get(key, (None, theta))[0] if self.memo is not None else None
        if found is None and tuned:
            found = self.tuned_text(self.layout_of(*tuned), bend, rng)
            if self.memo is not None:
                self.memo[key] = found, theta  # theta is held so that no other tensor can get its ids
        parts = {} if found is None else dict(zip(tuned, found.split(self.classes), strict=True))
        plain = {rows: self.zero_shot for rows in sets if rows not in parts}
        return {**parts, **plain}

    def tuned_text(self, layout: Layout, bend: Bend, rng: Rng = None) -> Tensor:
        return F.normalize(ask(TextCall(self.clip.text, self.cast, layout, bend, rng, self.budget / 2)), dim=-1)

    def logits(self, theta: Params, x: Tensor, rng: Rng = None) -> Tensor:
        """(B, C): the cosines times CLIP's frozen scale, or what a tuner's own head says."""
        bend = self.bend(theta)
        if bend.head is not None:
            return bend.head(self.features(theta, x, rng))
        z = self.image(theta, x, rng)
        if bend.for_image is not None:
            return self.clip.scale * self.cosines(bend, bend.for_image, z, rng)
        return self.clip.scale * z @ self.text(theta, rng).T

    def cosines(self, bend: Bend, rows: Callable[[Tensor], Tensor], z: Tensor, rng: Rng = None) -> Tensor:
        """(B, C), each image with sentences made for it. Only a few images' text activations are held at a time, and
        computed again in the backward pass, so that memory does not grow with the batch."""
        tower, layout = self.clip.text, self.layout
        kept = tower.kept(layout) + 8 * tower.width * len(bend.text_deltas) * len(layout.row)
        parts = z.split(max(1, int(min(TEXT_BYTES, self.budget) // kept)))
        seeds = [None if rng is None else int(torch.randint(1 << 62, (), generator=rng)) for _ in parts]

        def some(z: Tensor, seed: int | None) -> Tensor:
            draws = None if seed is None else torch.Generator().manual_seed(seed)
            with self.cast():
                features = tower(layout, rows(z), bend.own, bend.deep, bend.text_deltas, draws)  # (n, C, D)
            return torch.einsum("nd,ncd->nc", z, F.normalize(features.float(), dim=-1))

        pairs = zip(parts, seeds, strict=True)
        if len(parts) > 1 and torch.is_grad_enabled():
            return torch.cat([checkpoint(some, *pair, use_reentrant=False) for pair in pairs])
        return torch.cat([some(*pair) for pair in pairs])

    def zero_shot_logits(self, x: Tensor) -> Tensor:
        """(B, C) of CLIP as it is, from images at this model's stage."""
        with torch.no_grad():
            return self.plain_logits(self.tower(x, "features"))

    def plain_logits(self, features: Tensor) -> Tensor:
        """(B, C) of CLIP as it is, from its own features."""
        return self.clip.scale * F.normalize(self.put(features), dim=-1) @ self.zero_shot.T

    def teacher(self, view: View | Batch) -> Tensor:
        """(B, C) of CLIP as it is, from cached features where there are any."""
        return self.zero_shot_logits(view.x) if view.plain is None else self.plain_logits(view.plain)

    def remembering(self) -> Model:
        """For an evaluation, in which no parameter changes: the same model, computing each text matrix once."""
        other = copy(self)  # with what is computed already
        other.__dict__["memo"] = {}
        return other
