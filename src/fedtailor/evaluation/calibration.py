"""How sure a model may be: a temperature, and the confidence below which it is wrong more often than right.

Both are of pictures that nothing was trained on, and that are no test pictures. What they are worth is measured on
pictures that they were not fitted to: each half of those kept out by a fit to the other half.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from ..client.job import ClientState, Job
from ..core.types import Params, Server
from ..data.dataset import Indices
from .testing import EvalSet, client_logits, in_chunks, shared_logits

BINS = 15  # of the expected calibration error
WIDEST = 20.0  # temperatures are within this factor of 1: with no error to learn from, the best one would be 0
STEPS = 60  # of the search, each of which narrows it to 62%
GOLDEN = (math.sqrt(5) - 1) / 2
Numbers = NDArray[np.float64]


class Calibration(BaseModel):
    """Of one kind of model; shares and errors in percent."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    temperature: float = Field(gt=0, allow_inf_nan=False)  # logits are divided by it
    unsure: float = Field(ge=0, le=1)  # calibrated confidence below which an answer is more likely wrong than right
    pictures: int = Field(ge=1)  # that it was fitted to
    accuracy: float  # on them
    ece_before: float
    ece_after: float  # each half by the temperature of the other
    unsure_share: float  # of answers below `unsure`
    unsure_right: float | None  # of those, how many are right; None: there are none


def calibrate(logits: Tensor, labels: Indices) -> Calibration:
    """Of (N, C) logits of pictures that nothing was trained on."""
    logits, y = logits.double(), torch.from_numpy(labels)
    right = (logits.argmax(dim=1) == y).numpy()
    T = temperature(logits, y)
    sure = confidence(logits, T)
    unsure = unsure_below(sure, right)
    below = sure < unsure
    return Calibration(
        temperature=T,
        unsure=unsure,
        pictures=len(y),
        accuracy=100 * float(right.mean()),
        ece_before=calibration_error(confidence(logits, 1.0), right),
        ece_after=calibration_error(cross_fitted(logits, y), right),
        unsure_share=100 * float(below.mean()),
        unsure_right=100 * float(right[below].mean()) if below.any() else None,
    )


def confidence(logits: Tensor, T: float) -> Numbers:
    """(N,) the largest probability of each."""
    return np.asarray((logits / T).softmax(dim=1).amax(dim=1).numpy())


def temperature(logits: Tensor, labels: Tensor) -> float:
    """The T with the smallest cross-entropy of softmax(logits/T), by golden section: in 1/T it is convex."""

    def loss(log_T: float) -> float:
        return torch.nn.functional.cross_entropy(logits / math.exp(log_T), labels).item()

    return math.exp(lowest(loss, -math.log(WIDEST), math.log(WIDEST)))


def lowest(function: Callable[[float], float], low: float, high: float) -> float:
    """Where a function that falls and then rises is lowest."""
    a, b = high - GOLDEN * (high - low), low + GOLDEN * (high - low)
    at_a, at_b = function(a), function(b)
    for _ in range(STEPS):
        if at_a <= at_b:
            high, b, at_b = b, a, at_a
            a = high - GOLDEN * (high - low)
            at_a = function(a)
        else:
            low, a, at_a = a, b, at_b
            b = low + GOLDEN * (high - low)
            at_b = function(b)
    return (low + high) / 2


def cross_fitted(logits: Tensor, labels: Tensor) -> Numbers:
    """(N,) the confidence in each, by a temperature that was fitted without it: to the other half of the pictures."""
    found = confidence(logits, 1.0)
    halves = slice(0, None, 2), slice(1, None, 2)
    for mine, other in zip(halves, reversed(halves), strict=True):
        if len(labels[other]):
            found[mine] = confidence(logits[mine], temperature(logits[other], labels[other]))
    return found


def calibration_error(sure: Numbers, right: NDArray[np.bool_]) -> float:
    """ECE in percent: the gap between confidence and accuracy, bin by bin, each as much as it has pictures."""
    place = np.minimum((sure * BINS).astype(np.int64), BINS - 1)
    gap = np.bincount(place, sure - right, minlength=BINS)
    return 100 * float(np.abs(gap).sum() / len(sure))


def unsure_below(sure: Numbers, right: NDArray[np.bool_]) -> float:
    """The confidence below which answers are wrong more often than right, by the largest margin; 0: there is none.

    Going up from the least sure, a wrong answer counts one and a right one minus one: it is where the sum is highest.
    """
    order = np.argsort(sure, kind="stable")
    climbing = np.append(sure[order], 1.0)
    between = np.flatnonzero(np.diff(climbing) > 0)  # equally sure answers are on the same side
    margin = np.cumsum(np.where(right[order], -1, 1))[between]
    if not margin.size or margin.max() <= 0:
        return 0.0
    best = between[np.argmax(margin)]
    low, high = float(climbing[best]), float(climbing[best + 1])
    return (low + high) / 2 if (low + high) / 2 > low else high


def calibrate_shared(job: Job, server: Server, held: EvalSet, lent: Params | None) -> Calibration | None:
    """Of the server's model, if there is one."""
    logits = shared_logits(job, server, lent)
    if logits is None or not len(held.labels):
        return None
    return calibrate(torch.cat(list(in_chunks(logits, held.features, held.everything))).cpu(), held.labels)


def calibrate_personal(
    job: Job, server: Server, clients: Mapping[int, ClientState], held: EvalSet, own: Collection[int]
) -> Calibration | None:
    """Of the models of clients that have one of their own, together, each on its own pictures."""
    parts = [(k, part) for k, part in enumerate(held.parts) if len(part) and k in own]
    if not parts:
        return None
    said = [
        chunk.cpu()
        for k, part in parts
        for chunk in in_chunks(client_logits(job, server, k, clients.get(k, ClientState())), held.features, part)
    ]
    return calibrate(torch.cat(said), held.labels[np.concatenate([part for _, part in parts])])
