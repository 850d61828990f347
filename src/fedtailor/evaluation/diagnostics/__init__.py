"""What the papers plot besides accuracy, recorded every round on request: `record=angle,drift` or `record=all`.

A diagnostic looks at everything, truths and all clients' states too, since in a simulation it can. Nothing that it
finds reaches training.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from ...base.errors import UserError, unknown
from ...core.method import Method
from ...core.types import Cluster
from .branches import branches
from .distance import tkl
from .drift import drift
from .gradients import angle, variance
from .labels import labels
from .round import RoundView
from .scores import balance
from .server import bandit, clusters

DIAGNOSTICS: dict[str, Callable[[RoundView], Any]] = {
    "angle": angle,
    "tkl": tkl,
    "branches": branches,
    "drift": drift,
    "balance": balance,
    "variance": variance,
    "clusters": clusters,
    "bandit": bandit,
    "labels": labels,
}

# What some of them need, in words and as a test of the method and of whether labels are given.
NEEDS: dict[str, tuple[str, Callable[[Method, bool], bool]]] = {
    "branches": ("a global and a personal branch", lambda m, given: type(m).branches is not Method.branches),
    "clusters": ("clusters of clients", lambda m, given: any(isinstance(s, Cluster) for s in m.share.values())),
    "bandit": ("a bandit (method.bandit=true)", lambda m, given: bool(getattr(m, "bandit", False))),
    "labels": ("pseudo-labels (labels=copl, …)", lambda m, given: not given),
}
ALL = "all"


def choose(names: Iterable[str], method: Method, given: bool) -> tuple[str, ...]:
    """The diagnostics of these names, each once; `all` is all that a method can have, with labels given or not.

    A method that trains nothing has no rounds to record.
    """

    def fits(name: str) -> bool:
        return name not in NEEDS or NEEDS[name][1](method, given)

    asked = list(names)
    for name in asked:
        if name == ALL:
            continue
        if name not in DIAGNOSTICS:
            raise unknown("diagnostic", name, [*DIAGNOSTICS, ALL], "fedtailor list diagnostics")
        if method.trains and not fits(name):
            raise UserError(
                f"record={name} needs {NEEDS[name][0]}, and this run has none; record=all takes those that apply"
            )
    return tuple(n for n in DIAGNOSTICS if method.trains and (n in asked or (ALL in asked and fits(n))))


def measure(names: Iterable[str], seen: RoundView) -> dict[str, Any]:
    return {name: DIAGNOSTICS[name](seen) for name in names}
