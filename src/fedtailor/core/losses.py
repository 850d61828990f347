"""Losses, and the formulas that they are made of."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from .types import Batch

LEAST = 1e-12  # a probability below it counts as this


def entropy(p: Tensor) -> Tensor:
    """−Σ p ln p over the last axis."""
    return -(p * p.clamp_min(LEAST).log()).sum(-1)


def kl(p: Tensor, q: Tensor) -> Tensor:
    """Σ p ln(p/q) over the last axis."""
    return (p * (p.clamp_min(LEAST).log() - q.clamp_min(LEAST).log())).sum(-1)


def candidate_loss(logits: Tensor, candidates: Tensor) -> Tensor:
    """−ln Σ_j w_j p_j, the mean over rows: any of a picture's candidate classes will do. `candidates` is w, (B, C)."""
    return -torch.logsumexp(F.log_softmax(logits, dim=1) + candidates.log(), dim=1).mean()


def task_loss(logits: Tensor, batch: Batch) -> Tensor:
    """Cross-entropy, or the candidate-set loss where a labeler gave several labels; as a rebalancer would have it."""
    if batch.balance is not None:
        return batch.balance.loss(logits, batch)
    return plain_loss(logits, batch)


def plain_loss(logits: Tensor, batch: Batch) -> Tensor:
    if batch.candidates is not None:
        return candidate_loss(logits, batch.candidates)
    return F.cross_entropy(logits, batch.y)


def log_prior(counts: Tensor) -> Tensor:
    """(C,) ln π of class counts; a class that nobody has is as rare as a float can safely say."""
    return (counts.float() / counts.sum().clamp_min(1)).clamp_min(LEAST).log()


def angle(a: Tensor, b: Tensor) -> float:
    """Degrees between two vectors; NaN if one of them is zero."""
    lengths = a.norm() * b.norm()
    return float(torch.rad2deg(torch.arccos((a.flatten() @ b.flatten() / lengths).clamp(-1, 1))))
