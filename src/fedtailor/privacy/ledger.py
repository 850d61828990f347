"""How much of clients' privacy is spent: what was released so far, and the (ε, δ) that this comes to.

A release is a pass whose replies held an update, or counts. With clients as the unit, two federations are neighbours
that differ in all of one client's pictures, so that a clipped update may differ by 2 C. Against the server, which sees
each reply: a client's releases are as many Gaussian mechanisms, composed exactly. Against all but the server: one
Gaussian mechanism on the sum of a cohort that was drawn without replacement (Rényi accounting, by dp-accounting), with
as much noise as those who replied have added.

With pictures as the unit, neighbours are two federations one of which lacks a picture, in whose place there is nothing:
numbers of pictures, which are told, are the same. An update is then all the steps of a pass, each a Gaussian mechanism
of sensitivity C on pictures drawn with probability q (Rényi accounting again).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from ..base.errors import UserError
from ..core.optim import LocalTraining
from ..core.statistics import Forms
from ..core.types import Reply, Server
from .base import PrivacyStep
from .gaussian import Gaussian
from .pictures import rate_of, steps_of
from .releases import Releases

KINDS = ("updates", "counts")
BY_CLIENT, BY_SIZE = "privacy.clients.", "privacy.sizes."  # before a kind, in the server's state
PICTURES = "privacy.pictures"  # (K,) there: how many each has, 0 if it never said
# Fractional orders are sums of a series that may not converge, and give hardly less.
ORDERS = (*range(2, 65), 80, 96, 128, 192, 256)


class BudgetSpent(Exception):  # noqa: N818  # as it reads
    """The next release would exceed what is allowed."""


@dataclass
class Ledger:
    """Of one run; what rounds that are over have released is kept with the server's state."""

    privacy: Gaussian
    clients: int  # K
    cohort: int  # how many add noise together
    before: Mapping[str, Tensor]  # the round under way
    releases: Releases  # in it
    local: LocalTraining
    pictures: Tensor  # (K,)

    @classmethod
    def of(
        cls,
        privacy: PrivacyStep | None,
        server: Server,
        cohort: int,
        releases: Releases,
        local: LocalTraining,
        pictures: Mapping[int, int],
    ) -> Ledger | None:
        """None where nothing is counted. `pictures`: how many each client has, of those who have told."""
        if not isinstance(privacy, Gaussian):
            return None
        releases.begin(server.round)
        none = {BY_CLIENT + kind: torch.zeros(server.clients, dtype=torch.int64) for kind in KINDS}
        none |= {BY_SIZE + kind: torch.zeros(server.clients + 1, dtype=torch.int64) for kind in KINDS}
        before = {name: server.table(name, zero) for name, zero in none.items()}
        known = server.table(PICTURES, torch.zeros(server.clients, dtype=torch.int64))
        for k, n in pictures.items():
            known[k] = min(n, int(known[k])) if known[k] else n  # fewer tell more
        return cls(privacy, server.clients, cohort, before, releases, local, known)

    @property
    def released(self) -> dict[str, Tensor]:
        return self.with_(self.releases)

    def with_(self, releases: Releases) -> dict[str, Tensor]:
        found = dict(self.before)
        for kind in KINDS:
            for prefix, noted in ((BY_CLIENT, releases.clients), (BY_SIZE, releases.cohorts)):
                times, of = found[prefix + kind], [it.of for it in noted.values() if kind in it.kinds]
                found[prefix + kind] = times + torch.bincount(torch.tensor(of, dtype=torch.int64), minlength=len(times))
        return found

    def ask(self, name: str, forms: Forms, asked: Mapping[int, str]) -> None:
        """Note a pass, by the clients' requests, before they are sent; unless it is not allowed any more."""
        kinds, after = self.releases.known.get(name, may_release(forms)), self.releases.copy()
        after.note(asked, asked, kinds)
        for kind, limit in self.limits.items():
            if kind in kinds and limit and self.epsilon(kind, self.with_(after)) > limit:
                raise BudgetSpent(f"more {kind} would exceed ε = {limit:g}")
        self.releases.note(asked, asked, kinds)
        self.releases.keep()

    def answered(self, name: str, forms: Forms, asked: Mapping[int, str], replies: Mapping[int, Reply]) -> None:
        """What it has released in fact. Who was asked may have told it, even if the reply was late."""
        kinds = set[str]().union(*(kinds_of(replies[k], forms) for k in asked if k in replies))
        self.releases.known[name] = kinds
        self.releases.note(asked, [k for k in asked if k in replies], kinds)
        self.releases.keep()

    @property
    def limits(self) -> dict[str, float]:
        return {"updates": self.privacy.epsilon, "counts": self.privacy.counts_epsilon}

    def affords(self, before: Server) -> bool:
        """Whether there may be another round like the one that began with `before`."""
        next_ = {name: 2 * now - before.table(name, torch.zeros_like(now)) for name, now in self.released.items()}
        return all(not limit or self.epsilon(kind, next_) <= limit for kind, limit in self.limits.items())

    def epsilon(self, kind: str, released: Mapping[str, Tensor] | None = None) -> float:
        """Of the client that released most; infinite without noise."""
        released = self.released if released is None else released
        noise = self.privacy.noise if kind == "updates" else self.privacy.counts_noise
        if self.privacy.unit == "picture" and kind == "updates":
            pairs = zip(self.pictures.tolist(), released[BY_CLIENT + kind].tolist(), strict=True)
            return max(self.of_training(n, times) for n, times in set(pairs))
        if self.privacy.against == "server":
            changes = 1.0 if self.privacy.unit == "picture" else 2.0
            return of_releases(noise, int(released[BY_CLIENT + kind].max()), self.privacy.delta, changes)
        sizes = tuple((n, times) for n, times in enumerate(released[BY_SIZE + kind].tolist()) if times)
        return of_cohorts(noise, sizes, self.clients, self.cohort, self.privacy.delta)

    def of_training(self, pictures: int, times: int) -> float:
        """ε of a client with so many pictures, after so many passes of training; of one that never said, none."""
        rate, local = rate_of(pictures, self.local.batch), self.local
        steps = times * local.epochs * steps_of(pictures, local.batch, local.drop_last)
        return of_steps(self.privacy.noise, rate, steps, self.privacy.delta)

    def row(self) -> dict[str, float | str | None]:
        """For a round's record."""
        found = {"epsilon": self.epsilon("updates"), "counts_epsilon": self.epsilon("counts")}
        told = {n: v if math.isfinite(v) else None for n, v in found.items()}
        return {"unit": self.privacy.unit, **told, "delta": self.privacy.delta}

    def kept(self, server: Server) -> Server:
        return server.remember(**self.released, **{PICTURES: self.pictures})


def may_release(forms: Forms) -> set[str]:
    """What a pass may release, as far as its declared statistics tell."""
    return {"updates", *(["counts"] if any(form.counts for form in forms.values()) else [])}


def kinds_of(reply: Reply, forms: Forms) -> set[str]:
    """What is in a reply: counts by themselves, all else together."""
    counted = [forms[name].counts for name in reply.stats]
    return {kind for kind, there in zip(KINDS, (reply.params or not all(counted), any(counted)), strict=True) if there}


@cache
def of_releases(noise: float, times: int, delta: float, sensitivity: float = 2.0) -> float:
    """ε of so many Gaussian mechanisms of standard deviation `noise`."""
    if not times:
        return 0.0
    if not noise:
        return math.inf
    return float(accounting().gaussian_mechanism.get_epsilon_gaussian(noise / sensitivity / math.sqrt(times), delta))


@cache
def of_steps(noise: float, rate: float, steps: int, delta: float) -> float:
    """ε of so many steps, each on pictures drawn with this probability."""
    if not steps:
        return 0.0
    if not noise:
        return math.inf
    lib = accounting()
    accountant = lib.rdp.RdpAccountant(ORDERS)
    accountant.compose(lib.PoissonSampledDpEvent(rate, lib.GaussianDpEvent(noise)), steps)
    return float(accountant.get_epsilon(delta))


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
