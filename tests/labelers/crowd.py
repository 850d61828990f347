"""Clients that are nothing but tables of logits, to run a labeler's passes on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from fedtailor.core.types import Me, Params, Reply, Server, View
from fedtailor.labelers.base import Labeler


@dataclass(frozen=True)
class Pictures:
    """A picture is its row of zero-shot logits. There is no way to a label."""

    logits: Tensor

    def __len__(self) -> int:
        return len(self.logits)

    def views(self, size: int = 4) -> Iterator[View]:
        for index in torch.arange(len(self)).split(size) if len(self) else ():
            yield View(self.logits[index], index)


def own_model(x: Tensor) -> Tensor:
    """Takes every picture for the class after the one that CLIP takes it for."""
    return x.roll(1, dims=1)


@dataclass
class Crowd:
    """An engine: it runs passes on clients and holds what they keep; what went up is in `sent`."""

    tables: Sequence[Tensor]
    memory: dict[int, Params] = field(default_factory=dict)
    sent: list[dict[int, Params]] = field(default_factory=list)

    def __call__(
        self, pass_: Any, server: Server, cohort: Sequence[int], inbox: Mapping[int, Params] | None = None
    ) -> dict[int, Reply]:
        model = SimpleNamespace(classes=self.tables[0].shape[1], teacher=lambda view: view.x)
        replies = {}
        for k in cohort:
            kept = self.memory.setdefault(k, {})
            sent = (inbox or {}).get(k, {})
            me = Me(k, server.round, Pictures(self.tables[k]), kept, sent, torch.Generator(), own_model)  # type: ignore[arg-type]
            reply = pass_(model, me, {})
            kept |= reply.keep
            replies[k] = Reply(reply.params, reply.weight, reply.stats)
        self.sent.append({k: reply.stats for k, reply in replies.items()})
        return replies

    def label(self, labeler: Labeler, t: int = 0) -> dict[int, Params]:
        """What every client keeps after a labeling in round t."""
        clients = range(len(self.tables))
        labeler.label(Server(t, {}, clients=len(clients)), clients, self)
        return self.memory


def pairs(index: Tensor, y: Tensor) -> set[tuple[int, int]]:
    """(picture, label): what was chosen, in no order. Nothing may be there twice."""
    assert index.dtype == y.dtype == torch.int64
    chosen = list(zip(index.tolist(), y.tolist(), strict=True))
    assert len(set(chosen)) == len(chosen)
    return set(chosen)


def labels(kept: Params) -> set[tuple[int, int]]:
    return pairs(kept["labels.index"], kept["labels.y"])
