"""What clients count for the server: the labels they have, (K, C) as "counts" in its state, and tables of validation.

Or what it takes their labels to be, by what they trained: then no counts are sent. Validation is on what clients hold
out, or on the server's own data; no picture's own result goes up.
"""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from ..core import OWN, Each, Me, Model, Params, Pass, Reply, Server

TABLES = ("right", "said", "true")
FAINT = 0.01  # of the farthest row's way: weight decay alone, which moves rows of classes that a client lacks


def take_census(server: Server, census: Pass, each: Each) -> Server:
    """Ask all clients, once and again whenever labels are new; the pass sends a client's counts up. Who misses it keeps
    its last counts, at first zeros, until it next sends some."""
    if "counts" in server.state and not server.new_labels:
        return server
    return recount(server, each(census, server, server.members))


def recount(server: Server, replies: Mapping[int, Reply]) -> Server:
    """With the label counts of those who sent some."""
    sent = {k: reply.stats["counts"] for k, reply in replies.items()}
    none = torch.zeros(server.clients, len(next(iter(sent.values()))), dtype=torch.int64)
    counts = server.table("counts", none)
    counts[list(sent)] = torch.stack([*sent.values()])
    return server.remember(counts=counts)


def known_counts(server: Server) -> Tensor:
    """(K, C) label counts, as far as they are known, of those who take part; zeros for others."""
    counts = server.state["counts"]
    counts = server.table("counts", counts.new_zeros(server.clients, counts.shape[1]))
    counts[sorted(server.gone)] = 0
    return counts


def estimate(server: Server, moved: Mapping[int, Tensor], weights: Mapping[int, float]) -> Server:
    """With label counts as far as clients' updates of class-aware rows, (C, M, D), tell them."""
    found = {k: guessed_counts(rows, weights[k]) for k, rows in moved.items()}
    none = torch.zeros(server.clients, len(next(iter(found.values()))), dtype=torch.float64)
    counts = server.table("counts", none)
    counts[list(found)] = torch.stack([*found.values()])
    return server.remember(counts=counts)


def guessed_counts(moved: Tensor, pictures: float) -> Tensor:
    """(C,) a client's pictures, shared out among the classes by how far the row of each has moved."""
    far = torch.linalg.vector_norm(moved.double().flatten(1), dim=1)
    far = torch.where(far > FAINT * far.max(), far, 0.0)
    return pictures * (far / far.sum().clamp_min(torch.finfo(far.dtype).tiny))


def class_rows(old: Tensor, rows: Tensor, counts: Tensor, floor: float) -> Tensor:
    """(C, M, D): each class's mean over the clients (K, C, M, D) where its share of the samples is above the floor."""
    shares = counts.double() / counts.sum(1, keepdim=True).clamp_min(1)
    known = (shares > floor).to(rows)
    mean = torch.einsum("kc,kcmd->cmd", known, rows) / known.sum(0).clamp_min(1)[:, None, None]
    return torch.where((known.sum(0) > 0)[:, None, None], mean, old)


def validate(model: Model, me: Me, fraction: float) -> Params:
    """(C,) each: how often each class was right, said and true, on the slice that is not trained on."""
    held = me.data if me.id == OWN else me.data.split(fraction)[1]
    y = held.labels
    with torch.no_grad():
        said = torch.cat([me.predict(view.x).argmax(1).cpu() for view in held.views()] or [y])
    found = (y[said == y], said, y)
    return {name: torch.bincount(c, minlength=model.classes) for name, c in zip(TABLES, found, strict=True)}


def accuracy_and_f1(replies: Iterable[Reply]) -> tuple[float, float] | None:
    """In percent, from everyone's tables; None if nobody holds anything out."""
    right, said, true = torch.stack([torch.stack([r.stats[name] for name in TABLES]) for r in replies]).sum(0)
    if not int(true.sum()):
        return None
    return 100 * float(right.sum() / true.sum()), 100 * macro_f1(right, said, true)


def macro_f1(right: Tensor, said: Tensor, true: Tensor) -> float:
    """From counts by class; the mean is over the classes that occur."""
    there = true > 0
    return float((2 * right[there] / (said + true)[there]).double().mean())
