"""The server's part in a secure sum: it passes keys and sealed shares on, adds up masked replies, and opens the sum.

What a client does is in vault.py. Who is lost before its masked reply came has no part in the sum; the masks that
others made with it are computed from its masking key, of which they give shares. Those who stayed give shares of each
other's seeds. With too few of either the sum stays closed, and the next try begins with new keys.
"""

from __future__ import annotations

import secrets
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from random import SystemRandom
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch

from ..base.errors import UserError
from ..client.job import Task
from ..core.types import Params, Reply
from ..secure import keys as crypto
from ..secure.encoding import Layout
from ..secure.masked import Masked
from . import messages
from .vault import as_added, pair, what_is_sent

M = TypeVar("M", bound=messages.Message)


class Stage(NamedTuple):
    kind: str
    write: Callable[[int, dict[str, Any]], tuple[messages.Request, messages.TensorGroups]]
    take: Callable[[int, messages.Message, messages.TensorGroups], None]


@dataclass
class SecureSum:
    """Of the replies to one pass."""

    secure: Masked
    layout: Layout
    tasks: Mapping[int, Task]

    def __post_init__(self) -> None:
        self.first = next(iter(self.tasks.values()))
        if any(not same(task.inbox, self.first.inbox) for task in self.tasks.values()):
            raise UserError("clients are sent different things, and secure=masked adds up replies to the same alone")
        self.id = secrets.token_hex(16)
        self.keys: dict[int, messages.PublicKeys] = {}
        self.sealed: dict[int, dict[int, str]] = {}  # by whom, to whom
        self.total = np.zeros(self.layout.words, np.uint64)
        self.survivors: set[int] = set()  # who is in it
        self.shares: dict[int, list[bytes]] = defaultdict(list)  # of a survivor's seed, or the key of one that is gone
        self.stages = (
            Stage("train.keys", self.ask_keys, self.take_keys),
            Stage("train.shares", self.ask_shares, self.take_shares),
            Stage("train.pass", self.ask_masked, self.take_masked),
            Stage("train.open", self.ask_shares_of, self.take_shares_of),
        )

    @cached_property
    def graph(self) -> dict[int, list[int]]:
        """Of those who have given keys."""
        return self.secure.graph(self.keys, SystemRandom())

    def enough(self, stage: Stage, there: Collection[int]) -> int:
        """How many replies a stage waits for. Where all are neighbours, anybody's shares will do."""
        if stage.kind != "train.open" or any(len(near) < len(self.keys) - 1 for near in self.graph.values()):
            return len(there)
        return min(len(there), self.secure.least(len(self.keys)))

    def ask_keys(self, k: int, heading: dict[str, Any]) -> tuple[messages.Request, messages.TensorGroups]:
        task = self.tasks[k]
        return messages.KeysRequest(**self.about(heading), pass_name=task.pass_name, round=task.round), {}

    def take_keys(self, k: int, message: messages.Message, _: messages.TensorGroups) -> None:
        self.keys[k] = due(message, messages.KeysReply).keys

    def ask_shares(self, k: int, heading: dict[str, Any]) -> tuple[messages.Request, messages.TensorGroups]:
        peers = {near: self.keys[near] for near in self.graph[k]}
        return messages.SharesRequest(**self.about(heading), peers=peers), {}

    def take_shares(self, k: int, message: messages.Message, _: messages.TensorGroups) -> None:
        sealed = due(message, messages.SharesReply).sealed
        if sealed.keys() != set(self.graph[k]):
            raise UserError("it has not sealed a share to each of its neighbours")
        self.sealed[k] = sealed

    def ask_masked(self, k: int, heading: dict[str, Any]) -> tuple[messages.Request, messages.TensorGroups]:
        task, sealed = self.tasks[k], {near: self.sealed[near][k] for near in self.masks(k)}
        about = {**self.about(heading), "pass_name": task.pass_name, "round": task.round, "kept": heading["kept"]}
        return messages.MaskedRequest(**about, sealed=sealed), {"params": task.params, "inbox": task.inbox}

    def take_masked(self, k: int, message: messages.Message, tensors: messages.TensorGroups) -> None:
        due(message, messages.MaskedReply)
        words = tensors["masked"].get("words", torch.empty(0))
        if (words.dtype, tuple(words.shape)) != (torch.int64, (self.layout.words,)):
            raise UserError(f"it sent {tuple(words.shape)} in {words.dtype}, not {self.layout.words} words")
        self.total += words.numpy().view(np.uint64)
        self.survivors.add(k)

    def ask_shares_of(self, k: int, heading: dict[str, Any]) -> tuple[messages.Request, messages.TensorGroups]:
        there = self.survivors.intersection([k, *self.masks(k)])
        return messages.OpenRequest(**self.about(heading), survivors=tuple(sorted(there))), {}

    def take_shares_of(self, k: int, message: messages.Message, _: messages.TensorGroups) -> None:
        shares = due(message, messages.OpenReply).shares
        if shares.keys() != {k, *self.masks(k)}:
            raise UserError("it has not given a share for each of its neighbours")
        for owner, share in shares.items():
            self.shares[owner].append(bytes.fromhex(share))

    def mean(self) -> Reply:
        """The reply that each survivor would have sent if all had sent the same."""
        total, sent = self.total.copy(), what_is_sent(self.id, {"params": self.first.params, "inbox": self.first.inbox})
        for k in self.survivors:
            total -= crypto.mask(crypto.derived(self.secret(k), f"own mask {self.id}"), len(total))
        for gone in self.sealed.keys() - self.survivors:
            if not (near := self.survivors.intersection(self.masks(gone))):
                continue
            private = self.secret(gone)
            if crypto.public_of(private).hex() != self.keys[gone].masking:
                raise UserError(f"shares of the key of client {gone} are wrong")
            for k in near:
                key = crypto.agreed(private, bytes.fromhex(self.keys[k].masking), pair(self.id, k, gone, sent))
                total -= as_added(crypto.mask(key, len(total)), k, gone)
        return self.layout.mean(total, len(self.survivors))

    def secret(self, k: int) -> bytes:
        shares, least = self.shares[k], self.secure.least(len(self.graph[k]) + 1)
        if len(shares) < least:
            raise UserError(f"{len(shares)} shares of a secret of client {k}, {least} are needed")
        return crypto.join(shares[:least])

    def masks(self, k: int) -> list[int]:
        """With whom a client shares masks: neighbours that have sealed their shares."""
        return [near for near in self.graph[k] if near in self.sealed]

    def about(self, heading: dict[str, Any]) -> dict[str, Any]:
        return {**{name: value for name, value in heading.items() if name != "kept"}, "masking": self.id}


def due(message: messages.Message, kind: type[M]) -> M:
    if not isinstance(message, kind):
        raise UserError(f"it sent a {message.kind} where another reply was due")
    return message


def same(one: Params, other: Params) -> bool:
    return one.keys() == other.keys() and all(torch.equal(value, other[name]) for name, value in one.items())
