"""Entropic optimal transport in which a part of the mass may stay where it is, for many small problems at once."""

import torch
from torch import Tensor

HELD = 1 << 18  # numbers of the problems that are solved together: as much as a processor's cache holds
SPELL = 20  # iterations after which u and v go into logarithms: in so few they can't leave a double's range


@torch.no_grad()
def plan(
    cost: Tensor, rows: Tensor, columns: Tensor, eps: float, iterations: int = 100, tolerance: float = 1e-3
) -> Tensor:
    """(…, M, N) plans: a row gives at most its mass in `rows` (M,), a column gets exactly that in `columns` (N,).

    Each is the T of least ⟨cost, T⟩ + eps Σ T (ln T − 1), by scaling K = exp(−cost / eps) to diag(u) K diag(v). A
    problem stops by itself, once the mean |Δv| over its columns is below `tolerance`; none depends on those beside it.
    """
    if columns.sum() > rows.sum() * (1 + 1e-6):
        raise ValueError(f"columns get {float(columns.sum()):.6g} in all, more than the rows' {float(rows.sum()):.6g}")
    M, N = cost.shape[-2:]
    place = "cpu" if cost.device.type == "mps" else cost.device  # which has no doubles
    a, b = rows.to(place).double()[:, None, None], columns.to(place).double()[:, None]
    problems = cost.to(place).reshape(-1, M, N).split(max(1, HELD // (M * N)))
    plans = [scaled(-part.double() / eps, a, b, iterations, tolerance) for part in problems]
    return torch.cat(plans).reshape(cost.shape).to(cost)


def scaled(log_kernel: Tensor, a: Tensor, b: Tensor, iterations: int, tolerance: float) -> Tensor:
    """(P, M, N) plans, from v = 1: u and v of a spell of iterations are relative to those before it, which K then
    contains. The first iteration is in logarithms, so that no cost is too large."""
    log_K = log_kernel.permute(1, 2, 0).contiguous()  # (M, N, P): arithmetic runs along the problems
    log_u = (a.log() - log_fold(log_K.transpose(0, 1))[:, None]).clamp_max(0)
    log_v = b.log() - log_fold(log_K + log_u)
    u, v = torch.ones_like(log_u), torch.ones_like(log_v)
    moving = ~(fold((log_v.exp() - 1).abs()) / len(v) < tolerance)  # not even a number, where v is too large for one
    for i in range(iterations - 1):
        if not moving.any():
            break
        if i % SPELL == 0:
            log_u, log_v = log_u + u.log(), log_v + v.log()
            K, unit, one = (log_K + log_u + log_v).exp(), log_v.exp(), (-log_u).exp()
            u, v = torch.ones_like(u), torch.ones_like(v)
        next_u = torch.minimum(a / fold((K * v).transpose(0, 1))[:, None], one)  # u = min(a / K v, 1)
        next_v = b / fold(K * next_u)  # v = b / Kᵀ u
        moved = fold((next_v - v).abs() * unit) / len(v)
        u, v = torch.where(moving, next_u, u), torch.where(moving, next_v, v)
        moving = moving & ~(moved < tolerance)
    T = (log_K + (log_u + u.log()) + (log_v + v.log())).exp()
    return (T * (b / fold(T.clone()))).permute(2, 0, 1)  # what huge logarithms lose of v


def log_fold(x: Tensor) -> Tensor:
    """log Σ exp x over the first axis, where nothing can overflow."""
    best = x.amax(0)
    return best + fold((x - best).exp()).log()


def fold(x: Tensor) -> Tensor:
    """Σ x over the first axis; x is used up. torch's own sum adds in an order that depends on the other axes."""
    n = len(x)
    while n > 1:
        half = (n + 1) // 2
        x[: n - half] += x[half:n]
        n = half
    return x[0]
