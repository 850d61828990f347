"""Several tuners at once: `text_prompt+visual_prompt` is FedCoPL's, `coupled+class_prompt` CAPT's."""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import torch
from pydantic import SerializeAsAny

from ..base.errors import UserError
from ..clip.model import Clip
from ..core import Bend, Context, Model, Params, Tuner


class Join(Tuner):
    parts: tuple[SerializeAsAny[Tuner], ...]

    def touches(self) -> frozenset[str]:
        return frozenset[str]().union(*(part.touches() for part in self.parts))

    def stage(self, clip: Clip) -> str:
        return min((part.stage(clip) for part in self.parts), key=clip.vision.stages.index)

    def note(self, clip: Clip) -> str:
        return " · ".join(filter(None, (part.note(clip) for part in self.parts)))

    def class_rows(self) -> tuple[str, ...]:
        return tuple(row for part in self.parts for row in part.class_rows())

    def context(self, model: Model) -> Context:
        contexts = [part.context(model) for part in self.parts]
        learning = [context for context in contexts if context.shared or context.own]
        if any(sum(getattr(context, kind) > 0 for context in contexts) > 1 for kind in ("shared", "own")):
            raise UserError("two of the joined tuners put the same kind of context before the class name; keep one")
        if len({context.position for context in learning}) > 1:
            raise UserError("the joined tuners put the class name at different positions")
        shared, own = (sum(getattr(context, kind) for context in contexts) for kind in ("shared", "own"))
        before = sum((context.before for context in contexts), ())
        return Context(shared, own, before, learning[0].position if learning else "end")

    def init(self, model: Model, rng: torch.Generator) -> Params:
        self.context(model)
        touched = [part.touches() for part in self.parts]
        if {"classifier", "text"} <= self.touches():
            raise UserError("a head stands in place of the class sentences: a tuner of the text tower would do nothing")
        if any({"image", "classifier"} <= t for t in touched) and sum("image" in t for t in touched) > 1:
            raise UserError("a network of its own stands in place of the image tower: another tuner of it does nothing")
        theta: Params = {}
        for part in self.parts:
            new = part.init(model, rng)
            if clash := theta.keys() & new.keys():
                raise UserError(f"two of the joined tuners have the same parameters: {', '.join(sorted(clash))}")
            theta |= new
        self.bend(theta, model)  # whether they can act together shows here, before any work
        return theta

    def bend(self, theta: Params, model: Model) -> Bend:
        bends = [part.bend(theta, model) for part in self.parts]
        layers = [layer for bend in bends for layer in bend.prompts]
        if len(set(layers)) < len(layers):
            raise UserError("two of the joined tuners prompt the image tower at the same layer; keep one")
        for field in ("for_image", "net", "head"):
            if sum(getattr(bend, field) is not None for bend in bends) > 1:
                raise UserError("two of the joined tuners make the classifier, or its features; keep one")
        return Bend(**{field.name: merged([getattr(bend, field.name) for bend in bends]) for field in fields(Bend)})


def merged(values: Sequence[Any]) -> Any:
    """One field of several bends: mappings and tuples one after another, else the one that is there."""
    if isinstance(values[0], Mapping):
        return {key: value for mapping in values for key, value in mapping.items()}
    if isinstance(values[0], tuple):
        return sum(values, ())
    return next((value for value in values if value is not None), None)
