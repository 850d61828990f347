"""Several tuners at once: `text_prompt+visual_prompt` is FedCoPL's, `coupled+class_prompt` CAPT's."""

from __future__ import annotations

import torch
from pydantic import SerializeAsAny

from ..base.errors import UserError
from ..clip.model import Clip
from ..core.bend import Bend, Context
from ..core.model import Model, Tuner
from ..core.types import Params


class Join(Tuner):
    parts: tuple[SerializeAsAny[Tuner], ...]

    def touches(self) -> frozenset[str]:
        return frozenset(tower for part in self.parts for tower in part.touches())

    def stage(self, clip: Clip) -> str:
        return min((part.stage(clip) for part in self.parts), key=clip.vision.stages.index)

    def plan(self, model: Model) -> Context:
        plans = [part.plan(model) for part in self.parts]
        learning = [plan for plan in plans if plan.shared or plan.own]
        if sum(plan.shared > 0 for plan in plans) > 1 or sum(plan.own > 0 for plan in plans) > 1:
            raise UserError("two of the joined tuners put the same kind of context before the class name; keep one")
        if len({plan.position for plan in learning}) > 1:
            raise UserError("the joined tuners put the class name at different positions")
        return Context(
            shared=sum(plan.shared for plan in plans),
            own=sum(plan.own for plan in plans),
            before=sum((plan.before for plan in plans), ()),
            position=learning[0].position if learning else "end",
        )

    def init(self, model: Model, rng: torch.Generator) -> Params:
        self.plan(model)
        touched = [part.touches() for part in self.parts]
        if any("classifier" in t for t in touched) and any("text" in t for t in touched):
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
        for part in ("for_image", "net", "head"):
            if sum(getattr(bend, part) is not None for bend in bends) > 1:
                raise UserError("two of the joined tuners make the classifier, or its features; keep one")
        return Bend(
            shared=next((b.shared for b in bends if b.shared is not None), None),
            own=next((b.own for b in bends if b.own is not None), None),
            deep={k: v for b in bends for k, v in b.deep.items()},
            text_deltas={k: v for b in bends for k, v in b.text_deltas.items()},
            prompts={k: v for b in bends for k, v in b.prompts.items()},
            image_deltas={k: v for b in bends for k, v in b.image_deltas.items()},
            gates=tuple(gate for b in bends for gate in b.gates),
            for_image=next((b.for_image for b in bends if b.for_image is not None), None),
            net=next((b.net for b in bends if b.net is not None), None),
            head=next((b.head for b in bends if b.head is not None), None),
        )
