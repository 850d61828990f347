"""CPL: a set of candidate classes for each picture instead of one label that may be wrong.

Zhang, Wei, Liu and Feng, Candidate Pseudolabel Learning: Enhancing Vision-Language Models by Prompt Tuning with
Unlabeled Data, ICML 2024.
Notation: α → alpha, β → beta, K → k.
Departures: each client labels for itself, as FedCoPL's paper compares it. α is the paper's most frequent value, and β
1 − 2/C, so that each class is a candidate of 2/C of the pictures; there both are tuned for each dataset. With refresh,
pools start at k, not at a step's share of the pictures. As released: what is less probable than 1e-7 is no candidate;
with refresh, the first labeling weighs candidates by probability, later ones equally (soft=false: always equally).
"""

import math

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from ..core import Params
from .base import CANDIDATES, INDEX, LABEL
from .copl import select
from .zeroshot import SelfLabeler

LEAST = 1e-7


class CPL(SelfLabeler):
    alpha: float = Field(0.75, ge=0, le=1, title="α", description="quantile of top probabilities for a set to reach")
    beta: float | None = Field(None, ge=0, le=1, title="β", description="quantile within a class; none: 1 − 2/C")
    k: int = Field(16, ge=1, title="K", description="pictures in a class's pool")
    step: float = Field(0.1, ge=0, le=1, description="share of the pictures by which the pools grow with a labeling")
    soft: bool = Field(True, description="with refresh: weigh the first labeling's candidates by their probability")

    def labels(self, probs: Tensor, t: int) -> Params:
        n, C = probs.shape
        open_ = candidates(probs, self.alpha, max(1 - 2 / C, 0) if self.beta is None else self.beta)
        before = t // max(self.refresh, 1)  # labelings
        index, y = pools(probs, open_, max(self.k, math.ceil(before * n * self.step / C)))
        weights = softened(probs, open_) if self.soft and self.refresh and t == 0 else open_.float()
        return {INDEX: index, LABEL: y, CANDIDATES: weights[index]}


def threshold(probs: Tensor, alpha: float) -> Tensor:
    """() the α-quantile of the pictures' top probabilities."""
    return probs.amax(1).quantile(alpha)


def intra(probs: Tensor, least: Tensor) -> Tensor:
    """(n, C) each picture's most probable classes, up to the one with which their sum exceeds `least`."""
    p, order = probs.sort(dim=1, descending=True, stable=True)
    before = F.pad(p.cumsum(1), (1, -1))
    return torch.zeros_like(order, dtype=torch.bool).scatter(1, order, before <= least)


def inter(probs: Tensor, beta: float) -> Tensor:
    """(n, C) each class's most probable pictures."""
    return probs >= probs.quantile(beta, dim=0)


def candidates(probs: Tensor, alpha: float, beta: float) -> Tensor:
    """(n, C) which classes are open for each picture; it may be none."""
    if len(probs) == 0:
        return probs > 0
    return intra(probs, threshold(probs, alpha)) & inter(probs, beta) & (probs > LEAST)


def softened(probs: Tensor, candidates: Tensor) -> Tensor:
    """(n, C) the candidates' probabilities, of sum 1; all 0 where there is no candidate."""
    p = probs * candidates
    return p / p.sum(1, keepdim=True).clamp_min(LEAST)


def pools(probs: Tensor, candidates: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """(index, y) of the pictures in each class's pool of k. Each picture asks its most probable candidate class. A pool
    keeps the k surest who asked; the others ask their next."""
    p, order = torch.where(candidates, probs, -1.0).sort(dim=1, descending=True, stable=True)
    quota = torch.full((probs.shape[1],), k)
    asked, most = torch.zeros(len(probs), dtype=torch.int64), candidates.sum(1)
    while True:
        asking = (asked < most).nonzero().flatten()
        turn = asking, asked[asking]
        kept, y = select(p[turn], order[turn], quota)
        if len(kept) == len(asking):
            return asking[kept], y
        asked[asking] += 1
        asked[asking[kept]] -= 1
