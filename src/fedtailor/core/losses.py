"""Losses, and the formulas that they are made of."""

import torch
import torch.nn.functional as F
from torch import Tensor

from .types import Batch

LEAST = 1e-12  # smaller probabilities count as this


def one_hot(y: Tensor, classes: int) -> Tensor:
    """(B, C) of zeros and ones. torch's own looks at the values first, for which a GPU would have to be waited for."""
    return (y[:, None] == torch.arange(classes, device=y.device)).to(torch.int64)


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
    """Cross-entropy, or the candidate-set loss where a labeler gave several labels; reweighted by a rebalancer."""
    return plain_loss(logits, batch) if batch.balance is None else batch.balance.loss(logits, batch)


def plain_loss(logits: Tensor, batch: Batch) -> Tensor:
    return F.cross_entropy(logits, batch.y) if batch.candidates is None else candidate_loss(logits, batch.candidates)


def log_prior(counts: Tensor) -> Tensor:
    """(C,) ln π of class counts; finite even for a class that nobody has."""
    return (counts.float() / counts.sum().clamp_min(1)).clamp_min(LEAST).log()
