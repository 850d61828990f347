"""torch's own optimisers for a client's settings: what ours must equal."""

from __future__ import annotations

import torch
from torch import Tensor

from fedtailor.core.optim import LocalTraining


def torch_optimiser(local: LocalTraining, leaves: list[Tensor]) -> torch.optim.Optimizer:
    if local.optimiser == "sgd":
        return torch.optim.SGD(leaves, local.lr, local.momentum, 0, local.weight_decay, local.nesterov)
    kind = torch.optim.Adam if local.optimiser == "adam" else torch.optim.AdamW
    return kind(leaves, local.lr, local.betas, local.eps, local.weight_decay)
