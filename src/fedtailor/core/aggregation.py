"""How the server folds replies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch

from ..base.errors import UserError
from .types import Params, Reply


def even(replies: Mapping[int, Reply]) -> dict[int, Reply]:
    """Every client's word counts the same, however many samples it has."""
    return {k: replace(reply, weight=1.0) for k, reply in replies.items()}


def weighted_mean(replies: Mapping[int, Reply]) -> Params:
    """Σ w_k θ_k / Σ w_k over the clients that sent θ, folded in client order so that arrival order can't matter."""
    order = sorted(replies)
    names = dict.fromkeys(name for k in order for name in replies[k].params)
    mean = {}
    for name in names:
        senders = [k for k in order if name in replies[k].params]
        total = sum(replies[k].weight for k in senders)
        if total <= 0:
            raise UserError(
                f"the replies for {name} have a total weight of {total}; no client had anything to train on"
            )
        fold = torch.zeros_like(replies[senders[0]].params[name], dtype=torch.float64)
        for k in senders:
            fold += replies[k].params[name].double() * replies[k].weight
        mean[name] = (fold / total).to(replies[senders[0]].params[name].dtype)
    return mean
