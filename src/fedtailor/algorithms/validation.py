"""Validation on what clients hold out, or on the server's own data: tables of counts go up, no picture's own result."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from ..core import OWN, Me, Model, Params, Reply

TABLES = ("right", "said", "true")


def validate(model: Model, me: Me, fraction: float) -> Params:
    """(C,) each: how often each class was right, said and true, on the slice that is not trained on."""
    held = me.data if me.id == OWN else me.data.split(fraction)[1]
    y = held.labels
    with torch.no_grad():
        said = torch.cat([me.predict(view.x).argmax(1).cpu() for view in held.views()] or [y])
    found = (y[said == y], said, y)
    return {name: torch.bincount(c, minlength=model.classes) for name, c in zip(TABLES, found, strict=True)}


def accuracy_and_f1(replies: Iterable[Reply]) -> tuple[float, float] | None:
    """In percent, from everyone's tables; None if nobody holds anything out."""
    right, said, true = torch.stack([torch.stack([r.stats[name] for name in TABLES]) for r in replies]).sum(0)
    if not int(true.sum()):
        return None
    return 100 * float(right.sum() / true.sum()), 100 * macro_f1(right, said, true)


def macro_f1(right: Tensor, said: Tensor, true: Tensor) -> float:
    """From counts by class; the mean is over the classes that occur."""
    there = true > 0
    return float((2 * right[there] / (said + true)[there]).double().mean())
