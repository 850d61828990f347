"""Which branch is to thank for a right prediction, where a model is the sum of a global and a personal one."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...data.dataset import Indices
from ...data.groups import Groups
from ..metrics import percent
from ..testing import on_device, personal_theta
from .round import RoundView


@torch.no_grad()
def branches(seen: RoundView) -> dict[str, Any] | None:
    """Right predictions owed to the global and to the personal branch, head to tail. FedPuReL Fig. 5b"""
    truths, owed = [], []
    for k, part in enumerate(seen.tests.parts):
        if not seen.clients[k].local:
            continue
        model = seen.job.model.remembering()
        theta = on_device(seen.job, personal_theta(seen.job, seen.after, k, seen.clients[k]))
        for x, y in seen.test_batches(part):
            right, to_global = owing(*seen.job.method.branches(model, theta, x), y)
            truths.append(y[right].cpu().numpy())
            owed.append(to_global[right].cpu().numpy())
    return shares(np.concatenate(truths), np.concatenate(owed), seen.tests.groups) if truths else None


def owing(l_G: Tensor, l_P: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """(B,) which predictions are right, and for which the global branch says the true class louder."""
    own = y[:, None]
    return (l_G + l_P).argmax(1) == y, (l_G.gather(1, own) > l_P.gather(1, own)).flatten()


def shares(truths: Indices, owed: Indices, groups: Groups) -> dict[str, Any]:
    """Of right predictions: their classes, and whether each is owed to the global branch."""

    def share(which: Indices) -> dict[str, Any]:
        right, to_global = len(which), int(which.sum())
        return {"global": percent(to_global, right), "personal": percent(right - to_global, right), "right": right}

    return {"overall": share(owed), **{name: share(owed[np.isin(truths, some)]) for name, some in groups.items()}}
