"""How the server averages replies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch

from ..base.errors import UserError
from .types import Params, Reply


def even(replies: Mapping[int, Reply]) -> dict[int, Reply]:
    """Every client counts the same, however many samples it has."""
    return {k: replace(reply, weight=1.0) for k, reply in replies.items()}


def weighted_mean(replies: Mapping[int, Reply]) -> Params:
    """Σ w_k θ_k / Σ w_k over the clients that sent θ, added up in client order so that arrival order can't matter."""
    order = sorted(replies)
    mean = {}
    for name in dict.fromkeys(name for k in order for name in replies[k].params):
        senders = [replies[k] for k in order if name in replies[k].params]
        total, first = sum(reply.weight for reply in senders), senders[0].params[name]
        if total <= 0:
            raise UserError(
                f"the replies for {name} have a total weight of {total}; no client had anything to train on"
            )
        fold = torch.zeros_like(first, dtype=torch.float64)
        for reply in senders:
            fold += reply.params[name].double() * reply.weight
        mean[name] = (fold / total).to(first.dtype)
    return mean
