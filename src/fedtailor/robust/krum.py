"""Krum: only the replies whose updates lie closest to their neighbours' count.

Blanchard et al., Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent, NeurIPS 2017: multi-Krum, with
m = n − f. A reply's score is the sum of its squared distances to its n − f − 2 nearest.
"""

import math

import torch
from pydantic import Field
from torch import Tensor

from .base import STATISTIC, Changes, Robust


class Krum(Robust):
    share: float = Field(0.2, ge=0, lt=0.5, title="f/n", description="of the round's replies that may be bad")

    def changed(self, changes: dict[int, Changes]) -> dict[int, Changes]:
        updates = {k: flat(change) for k, change in changes.items()}
        n, f = len(updates), math.ceil(self.share * len(updates) - 1e-9)
        if len({len(update) for update in updates.values()}) != 1 or not len(next(iter(updates.values()))):
            return changes  # nothing that could be compared: a pass that only counts, or clients without pictures
        distances = torch.cdist(rows := torch.stack([*updates.values()]), rows).square()
        near = distances.sort(1).values[:, 1 : 1 + max(n - f - 2, 1)]  # the first is the reply itself
        best = near.sum(1).argsort(stable=True)[: n - f].tolist()
        order = list(updates)
        return {k: changes[k] for k in sorted(order[i] for i in best)}


def flat(change: Changes) -> Tensor:
    parts = [value.flatten() for name, value in sorted(change.items()) if not name.startswith(STATISTIC)]
    return torch.cat(parts) if parts else torch.empty(0)
