"""Label counts of all clients, (K, C), as "counts" in the server's state."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from ..core import Each, Pass, Reply, Server

COUNTS = "counts"


def take_census(server: Server, census: Pass, each: Each) -> Server:
    """Ask all clients, once and again whenever labels are new; the pass sends a client's counts up.

    Who misses it keeps its last counts, at first zeros, until it next sends some.
    """
    if COUNTS in server.state and not server.new_labels:
        return server
    replies = each(census, server, range(server.clients))
    if COUNTS not in server.state:
        C = len(next(iter(replies.values())).stats[COUNTS])
        server = server.remember(counts=torch.zeros(server.clients, C, dtype=torch.int64))
    return recount(server, replies)


def recount(server: Server, replies: Mapping[int, Reply]) -> Server:
    """With the label counts of those who sent some."""
    counts = server.state[COUNTS].clone()
    for k, reply in replies.items():
        counts[k] = reply.stats[COUNTS]
    return server.remember(counts=counts)


def class_rows(old: Tensor, rows: Tensor, counts: Tensor, floor: float) -> Tensor:
    """(C, M, D): each class's mean over the clients (K, C, M, D) where its share of the samples is above the floor."""
    shares = counts.double() / counts.sum(1, keepdim=True).clamp_min(1)
    known = (shares > floor).to(rows)
    mean = torch.einsum("kc,kcmd->cmd", known, rows) / known.sum(0).clamp_min(1)[:, None, None]
    return torch.where((known.sum(0) > 0)[:, None, None], mean, old)
