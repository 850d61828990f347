"""What passes ask of the towers, and how several clients' calls become one (lockstep.py)."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch
from torch import Tensor

from ..clip.block import Deltas, Rng, Several, TowerDeltas
from ..clip.text import Layout, TextTower
from ..clip.vision import ImageTower, Prompt
from .bend import Bend

Cast = Callable[[], AbstractContextManager[object]]  # the precision of the towers
TOGETHER = 24_000  # numbers a layer: with more, matrices are large enough alone, and one larger product wins nothing


@dataclass(frozen=True, eq=False)
class TextCall:
    tower: TextTower
    cast: Cast
    layout: Layout
    bend: Bend
    rng: Rng
    budget: float  # bytes of activations; over it, they are computed again
    last = False

    @property
    def key(self) -> Hashable:
        if len(self.layout.row) * self.tower.width > TOGETHER:
            return id(self)
        return id(self.layout), self.bend.shared is None, self.bend.own is None, tuple(self.bend.text_deltas)

    def answer(self, calls: Sequence[TextCall]) -> list[Tensor]:
        layout, bends, alone = self.layout, [call.bend for call in calls], len(calls) == 1

        def stacked(rows: Sequence[Tensor | None]) -> Tensor | None:
            tensors = [each for each in rows if each is not None]
            return (tensors[0] if alone else torch.stack(tensors)) if tensors else None

        shared = stacked([bend.shared for bend in bends]) if layout.shared else None
        own = stacked([bend.own for bend in bends]) if layout.own else None
        deep = {i: stacked([bend.deep[i] for bend in bends]) for i in self.bend.deep} if layout.shared else {}
        deltas = several([bend.text_deltas for bend in bends], [1] * len(calls))
        rngs = self.rng if alone else tuple(call.rng for call in calls)
        recompute = torch.is_grad_enabled() and len(calls) * self.tower.kept(layout) > self.budget
        with self.cast():
            found = self.tower(layout, shared, own, deep, deltas, rngs, recompute).float()
        return [found] if alone else list(found.unbind())


@dataclass(frozen=True, eq=False)
class ImageCall:
    tower: ImageTower
    cast: Cast
    x: Tensor  # (B, …) at the stage `start`
    start: str
    stop: str
    bend: Bend
    rng: Rng
    budget: float
    last = False

    @property
    def key(self) -> Hashable:
        if self.x.numel() > TOGETHER:
            return id(self)
        prompts = {layer: (prompt.replace, prompt.keep) for layer, prompt in self.bend.prompts.items()}
        return self.x.shape[1:], self.start, self.stop, tuple(prompts.items()), tuple(self.bend.image_deltas)

    def answer(self, calls: Sequence[ImageCall]) -> list[Tensor]:
        sizes, alone = [call.x.shape[0] for call in calls], len(calls) == 1
        prompts = dict(self.bend.prompts)
        for layer, (_, replaces, keep) in () if alone else self.bend.prompts.items():
            each = [call.bend.prompts[layer].tokens.expand(n, -1, -1) for call, n in zip(calls, sizes, strict=True)]
            prompts[layer] = Prompt(torch.cat(each), replaces, keep)
        deltas = several([call.bend.image_deltas for call in calls], sizes)
        rngs = self.rng if alone else tuple(call.rng for call in calls)
        x = self.x if alone else torch.cat([call.x for call in calls])
        recompute = torch.is_grad_enabled() and self.tower.kept(x, self.start, prompts) > self.budget
        with self.cast():
            found = self.tower(x, self.start, self.stop, prompts, deltas, rngs, recompute).float()
        return [found] if alone else list(found.split(sizes))


def several(deltas: Sequence[Deltas], sizes: Sequence[int]) -> TowerDeltas:
    """Clients' deltas as one, each for so much of the batch axis."""
    if len(deltas) == 1:
        return deltas[0]
    return {at: Several(tuple(each[at] for each in deltas), tuple(sizes)) for at in deltas[0]}
