"""How much of clients' privacy is spent: what was released so far, and the (ε, δ) that this comes to.

A release is a pass whose replies held an update, or counts. Two federations are neighbours that differ in all of one
client's pictures, so that a clipped update may differ by 2 C. Against the server, which sees each reply: a client's
releases are as many Gaussian mechanisms, composed exactly. Against all but the server: one Gaussian mechanism on the
sum of a cohort that was drawn without replacement (Rényi accounting, by dp-accounting), with as much noise as those who
replied have added.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from ..base.errors import UserError
from ..core.statistics import Forms
from ..core.types import OWN, Reply, Server
from .base import PrivacyStep
from .gaussian import Gaussian

KINDS = ("updates", "counts")
BY_CLIENT, BY_SIZE = "privacy.clients.", "privacy.sizes."  # before a kind, in the server's state


class BudgetSpent(Exception):  # noqa: N818  # as it reads
    """The next release would exceed what is allowed."""


@dataclass
class Ledger:
    """Of one run; `released` is kept with the server's state."""

    privacy: Gaussian
    clients: int  # K
    cohort: int  # how many add noise together
    released: dict[str, Tensor]

    @classmethod
    def of(cls, privacy: PrivacyStep | None, server: Server, cohort: int) -> Ledger | None:
        """None where nothing is counted."""
        if not isinstance(privacy, Gaussian):
            return None
        none = {BY_CLIENT + kind: torch.zeros(server.clients, dtype=torch.int64) for kind in KINDS}
        none |= {BY_SIZE + kind: torch.zeros(server.clients + 1, dtype=torch.int64) for kind in KINDS}
        return cls(privacy, server.clients, cohort, {name: server.state.get(name, zero) for name, zero in none.items()})

    def count(self, replies: Mapping[int, Reply], forms: Forms) -> set[str]:
        """What a pass has released: of which kinds."""
        found = {k: kinds_of(reply, forms) for k, reply in replies.items() if k != OWN}
        for kind in KINDS:
            self.released = self.after(kind, [k for k, kinds in found.items() if kind in kinds])
        return set[str]().union(*found.values())

    def after(self, kind: str, senders: Collection[int]) -> dict[str, Tensor]:
        if not senders:
            return self.released
        clients, sizes = self.released[BY_CLIENT + kind].clone(), self.released[BY_SIZE + kind].clone()
        clients[list(senders)] += 1
        sizes[len(senders)] += 1
        return {**self.released, BY_CLIENT + kind: clients, BY_SIZE + kind: sizes}

    @property
    def limits(self) -> dict[str, float]:
        return {"updates": self.privacy.epsilon, "counts": self.privacy.counts_epsilon}

    def check(self, kinds: Collection[str], cohort: Collection[int]) -> None:
        """Before a pass that will release these: whether that is still allowed."""
        for kind in sorted(kinds):
            if (limit := self.limits[kind]) and self.epsilon(kind, self.after(kind, cohort)) > limit:
                raise BudgetSpent(f"more {kind} would exceed ε = {limit:g}")

    def affords(self, before: Server) -> bool:
        """Whether there may be another round like the one that began with `before`."""
        next_ = {name: 2 * now - before.state.get(name, torch.zeros_like(now)) for name, now in self.released.items()}
        return all(not limit or self.epsilon(kind, next_) <= limit for kind, limit in self.limits.items())

    def epsilon(self, kind: str, released: Mapping[str, Tensor] | None = None) -> float:
        """Of the client that released most; infinite without noise."""
        released = self.released if released is None else released
        noise = self.privacy.noise if kind == "updates" else self.privacy.counts_noise
        if self.privacy.against == "server":
            return of_releases(noise, int(released[BY_CLIENT + kind].max()), self.privacy.delta)
        sizes = tuple((n, times) for n, times in enumerate(released[BY_SIZE + kind].tolist()) if times)
        return of_cohorts(noise, sizes, self.clients, self.cohort, self.privacy.delta)

    def row(self) -> dict[str, float | None]:
        """For a round's record."""
        found = {"epsilon": self.epsilon("updates"), "counts_epsilon": self.epsilon("counts")}
        return {**{n: v if math.isfinite(v) else None for n, v in found.items()}, "delta": self.privacy.delta}

    def kept(self, server: Server) -> Server:
        return server.remember(**self.released)


def may_release(forms: Forms) -> set[str]:
    """What a pass may release, as far as its declared statistics tell."""
    return {"updates", *(["counts"] if any(form.counts for form in forms.values()) else [])}


def kinds_of(reply: Reply, forms: Forms) -> set[str]:
    """What is in a reply: counts by themselves, all else together."""
    counted = [forms[name].counts for name in reply.stats]
    return {kind for kind, there in zip(KINDS, (reply.params or not all(counted), any(counted)), strict=True) if there}


@cache
def of_releases(noise: float, times: int, delta: float) -> float:
    """ε of so many Gaussian mechanisms of sensitivity 2 and standard deviation `noise`."""
    if not times:
        return 0.0
    if not noise:
        return math.inf
    return float(accounting().gaussian_mechanism.get_epsilon_gaussian(noise / 2 / math.sqrt(times), delta))


@cache
def of_cohorts(noise: float, sizes: tuple[tuple[int, int], ...], clients: int, cohort: int, delta: float) -> float:
    """ε of sums over cohorts drawn without replacement; `sizes`: how many replied, and how often."""
    if not sizes:
        return 0.0
    if not noise:
        return math.inf
    lib = accounting()
    accountant = lib.rdp.RdpAccountant(neighboring_relation=lib.NeighboringRelation.REPLACE_ONE)
    for replied, times in sizes:
        event = lib.GaussianDpEvent(noise * math.sqrt(replied / cohort) / 2)
        whole = replied >= clients
        accountant.compose(event if whole else lib.SampledWithoutReplacementDpEvent(clients, replied, event), times)
    return float(accountant.get_epsilon(delta))


def accounting() -> Any:
    """Loaded when something is to be counted."""
    try:
        import dp_accounting
        import dp_accounting.gaussian_mechanism
        import dp_accounting.rdp
    except ImportError as error:
        raise UserError("privacy=gaussian counts by dp-accounting; pip install 'fedtailor[privacy]'") from error
    return dp_accounting
