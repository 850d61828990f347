"""Equiangular tight frames: classifiers whose classes all point equally far away from each other."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from ..base.errors import UserError


def etf(C: int, D: int, rng: torch.Generator) -> Tensor:
    """(C, D) unit rows, every two at the cosine −1/(C−1), turned at random."""
    if not 1 < C <= D:
        raise UserError(
            "an equiangular frame needs two or more classes and features at least as long as there are classes: "
            f"got {C} classes and features of length {D}"
        )
    basis: Tensor = torch.linalg.qr(torch.randn(D, C, generator=rng, dtype=torch.float64))[0]  # orthonormal columns
    centred = torch.eye(C, dtype=torch.float64) - 1 / C
    return math.sqrt(C / (C - 1)) * centred @ basis.T


def sparse_etf(C: int, D: int, beta: float, length: float, steps: int, rng: torch.Generator) -> Tensor:
    """(C, D) rows of one length, a share beta of each row zero; Adam turns the rest until the angles are wide again.

    What is made wide is each row's angle to its nearest. Double precision, so that every machine rounds to the same.
    Of more classes than features there is no equiangular frame: rows begin at random, and Adam alone sets them apart.
    """
    w = (etf(C, D, rng) if C <= D else torch.randn(C, D, generator=rng, dtype=torch.float64)).requires_grad_()
    kept = torch.rand(C, D, generator=rng).argsort(1) >= int(beta * D)
    itself, adam = torch.eye(C, dtype=torch.bool), torch.optim.Adam([w], lr=1e-3)
    for _ in range(steps):
        rows = F.normalize(w * kept, dim=1)
        nearest = (rows @ rows.T).masked_fill(itself, -1).amax(1)
        (w.grad,) = torch.autograd.grad(-nearest.clamp(-0.99999, 0.99999).arccos().mean(), w)
        adam.step()
    return (length * F.normalize(w.detach() * kept, dim=1)).float()
