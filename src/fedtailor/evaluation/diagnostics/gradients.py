"""Gradients of the shared parameters, at the model that the cohort was sent: their angles, and their variance."""

from collections import Counter
from collections.abc import Iterable, Iterator
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from ...algorithms.alignment import alignment
from ...core.losses import task_loss
from ...core.types import FIXED, LOCAL, Batch, Params
from .round import RoundView

BATCH = 64  # samples of a client, for `angle`
SAMPLES = 24  # samples of a client, each with a gradient of its own, for `variance`
LEAST = 1e-4  # an alignment gradient shorter than this, relative to the task's, is a rounding error of temperatures


def leaves(seen: RoundView, k: int) -> tuple[Params, list[Tensor]]:
    """The model that client k was sent, and its shared parameters, which require gradients."""
    theta = seen.sent(k)
    shared = [name for name, scope in seen.job.scopes.items() if scope not in (LOCAL, FIXED)]
    theta |= {name: theta[name].detach().clone().requires_grad_() for name in shared}
    return theta, [theta[name] for name in shared]


def gradient(loss: Tensor, by: list[Tensor]) -> Tensor:
    """As one vector. The graph stays, for the next loss on it."""
    parts = torch.autograd.grad(loss, by, retain_graph=True, materialize_grads=True)
    return torch.cat([part.flatten() for part in parts]).cpu().double()


def angle(seen: RoundView) -> dict[str, Any]:
    """Angle between task and alignment gradient: does what clients learn lead away from CLIP? FedPuReL Fig. 7"""
    cosines = []
    for k in seen.cohort:
        theta, by = leaves(seen, k)
        batch = seen.batch(k, BATCH, "angle")
        if batch is None or not by:
            continue
        f = seen.job.method.predict_shared(seen.job.model, theta, batch.x)
        align = alignment("tkl", seen.job.model.teacher(batch), f)
        cosines.append(cosine(gradient(task_loss(f, batch), by), gradient(align, by)))
    return angles([found for found in cosines if found is not None])


def cosine(task: Tensor, align: Tensor) -> float | None:
    """None where one of the two has no direction."""
    if not task.norm() or align.norm() <= LEAST * task.norm():
        return None
    return float((task @ align / (task.norm() * align.norm())).clamp(-1, 1))


def angles(cosines: list[float]) -> dict[str, Any]:
    """Means over clients; `conflict` is the percentage of those above 90 degrees."""
    degrees = torch.tensor(cosines, dtype=torch.float64).arccos().rad2deg().tolist()
    columns = {"degrees": degrees, "cosine": cosines, "conflict": [100.0 * (found < 0) for found in cosines]}
    return {**{name: fmean(c) if c else None for name, c in columns.items()}, "clients": len(cosines)}


def variance(seen: RoundView) -> dict[str, Any] | None:
    """Variance of samples' gradients, within and between clients, and the bound by class proportions. CAPT App. F"""
    return decomposed((sample_gradients(seen, k) for k in seen.cohort), seen.job.model.classes)


def sample_gradients(seen: RoundView, k: int) -> Iterator[tuple[Tensor, int]]:
    """Of one client: each sample's gradient of the task loss, and its class."""
    theta, by = leaves(seen, k)
    batch = seen.batch(k, SAMPLES, "variance")
    if batch is None or not by:
        return
    model = seen.job.model.remembering()  # the class sentences are encoded once, not for each sample
    for i, c in enumerate(batch.y.tolist()):
        some = slice(i, i + 1)
        candidates = None if batch.candidates is None else batch.candidates[some]
        one = Batch(batch.x[some], batch.y[some], batch.index[some], candidates=candidates)
        yield gradient(task_loss(seen.job.method.predict_shared(model, theta, one.x), one), by), c


def decomposed(clients: Iterable[Iterable[tuple[Tensor, int]]], C: int) -> dict[str, Any] | None:
    """From each client's (gradient, class) pairs, one at a time: only sums by client and by class are kept."""
    found: list[tuple[Tensor, float, float, Tensor]] = []  # of each client: ∇F_k, σ_k², E_k ‖∇ℓ‖², π^k
    sums: dict[int, Tensor] = {}
    counts: Counter[int] = Counter()
    for samples in clients:
        n, middle, spread, square, own = 0, torch.zeros(()), 0.0, 0.0, torch.zeros(C, dtype=torch.float64)
        for g, c in samples:
            n, away = n + 1, g - middle
            middle = middle + away / n
            spread += float(away @ (g - middle))  # Welford's
            square += float(g @ g)
            own[c] += 1
            counts[c] += 1
            sums[c] = sums[c] + g.float() if c in sums else g.float()
        if n:
            found.append((middle, spread / n, square / n, own / n))
    if not found:
        return None
    means, within, squares, proportions = zip(*found, strict=True)
    F, K = sum(means, torch.zeros(())) / len(means), len(means)
    away_from_mean = torch.stack(proportions) - torch.stack(proportions).mean(0)  # (K, C)
    classes = {c: total.double() / counts[c] for c, total in sums.items()}  # ∇F_c
    sigma2 = sum(within) / K
    delta2 = sum(float((mine - F).square().sum()) for mine in means) / K
    total = sum(square - 2 * float(mine @ F) for square, mine in zip(squares, means, strict=True)) / K + float(F @ F)
    explained = [sum((row[c] * g for c, g in classes.items()), torch.zeros(())) for row in away_from_mean]
    G, delta_pi2 = max(float(g.norm()) for g in classes.values()), float(away_from_mean.square().sum()) / K
    bound = G**2 * delta_pi2
    return {
        "sigma2": sigma2,  # within clients
        "delta2": delta2,  # between them
        "total": total,
        "gap": abs(sigma2 + delta2 - total) / total if total else None,  # Lemma 1: none
        "delta2_classes": sum(float(g.square().sum()) for g in explained) / K,  # if each class had one gradient
        "delta_pi2": delta_pi2,
        "G": G,
        "bound": bound,
        "bound_C": C * bound,
        "below": delta2 <= bound,  # Theorem 1
        "below_C": delta2 <= C * bound,
        "clients": K,
        "samples": sum(counts.values()),
    }
