"""How differently a round's clients changed their parameters, in either tower."""

from typing import Any

import torch
from torch import Tensor

from ...base.rng import generator
from ...client.job import Job, theta_of
from ...client.step import StepTrace
from ...core.model import Model
from ...core.types import OWN, Params
from .round import RoundView


def drift(seen: RoundView) -> dict[str, Any]:
    """Drift diversity and cosine distance of what clients changed, by tower, LOCAL parameters too. FedCoPL Fig. 2"""
    moves: dict[int, Params] = {}
    for trace in seen.trace:
        if trace.client != OWN and (moved := changed(seen.job, trace)):
            moves[trace.client] = moves.get(trace.client, {}) | moved  # of each parameter, the last pass counts
    tower = towers(seen.job)
    parts = {part: {name for name in tower if tower[name] == part} for part in ("text", "image")}
    return {part: spread(rows(moves, names)) for part, names in {**parts, "all": set(seen.job.start)}.items()}


def changed(job: Job, trace: StepTrace) -> Params:
    """What a pass returned, whether sent or kept by the client, minus what it began with."""
    theta = theta_of(job, trace.task.params, trace.before)
    now = trace.reply.params | new(trace.after.tuned, trace.before.tuned) | new(trace.after.local, trace.before.local)
    return {n: value.double() - theta[n].double() for n, value in now.items()}


def new(after: Params, before: Params) -> Params:
    """What a client step wrote: everything else is the very tensor that was there before."""
    return {name: value for name, value in after.items() if value is not before.get(name)}


def rows(moves: dict[int, Params], names: set[str]) -> Tensor | None:
    """(K, P) the moves of each client that changed one of these parameters; None if nobody did."""
    like = {n: v for k in sorted(moves) for n, v in moves[k].items() if n in names}
    movers = [moves[k] for k in sorted(moves) if like.keys() & moves[k].keys()]
    if not movers:
        return None
    return torch.stack([torch.cat([m.get(n, torch.zeros_like(v)).flatten() for n, v in like.items()]) for m in movers])


def spread(m: Tensor | None) -> dict[str, Any] | None:
    """Σ‖m_k‖² / ‖Σ m_k‖², and the mean of 1 − cos(m_i, m_j) over pairs; None where nothing moved."""
    if m is None:
        return None
    together, movers = float(m.sum(0).square().sum()), m[m.norm(dim=1) > 0]
    unit, K = movers / movers.norm(dim=1, keepdim=True), len(movers)
    cosines = float((unit @ unit.T).triu(1).sum())
    return {
        "diversity": float(m.square().sum()) / together if together else None,
        "cosine_distance": 1 - cosines / (K * (K - 1) / 2) if K > 1 else None,
        "clients": len(m),
    }


def towers(job: Job) -> dict[str, str]:
    """The tower of each of the tuner's parameters, whatever prefix the method puts before their names."""
    own = own_towers(job.model)
    owner = {name: next((o for o in own if name == o or name.endswith(f".{o}")), "") for name in job.start}
    return {name: own[o] for name, o in owner.items() if o}


def own_towers(model: Model) -> dict[str, str]:
    """The tower of each tuner parameter: text if the class sentences depend on it, else image."""
    theta = {n: v.detach().clone().requires_grad_() for n, v in model.init(generator("towers")).items()}
    bend = model.bend(theta)
    deltas = [matrix for delta in bend.text_deltas.values() for matrix in (delta.A, delta.B)]
    rows = None if bend.for_image is None else bend.for_image(model.zero_shot[:1])
    text = [part.sum() for part in (bend.shared, bend.own, rows, *bend.deep.values(), *deltas) if part is not None]
    if not text:
        return dict.fromkeys(theta, "image")
    reached = torch.autograd.grad(torch.stack(text).sum(), list(theta.values()), allow_unused=True)
    return {name: "image" if g is None else "text" for name, g in zip(theta, reached, strict=True)}
