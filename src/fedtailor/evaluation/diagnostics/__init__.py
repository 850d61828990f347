"""What the papers plot besides accuracy, recorded every round on request: `record=angle,drift` or `record=all`.

A diagnostic is a function of a round (RoundView). It may look at everything, true labels and all clients' states too,
as this is a simulation. Nothing it finds reaches training.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from ...base.errors import UserError, unknown
from ...core.method import Method
from ...core.types import Cluster
from .closed import closed
from .drift import drift
from .gradients import angle, variance
from .predictions import balance, branches, labels, tkl
from .round import RoundView
from .server import bandit, clusters

ALL = "all"


@dataclass(frozen=True)
class Diagnostic:
    measure: Callable[[RoundView], Any]
    needs: str = ""  # what a run must have for it, in words
    fits: Callable[[Method, bool], bool] = lambda method, given: True  # whether it has; `given`: are labels given?


DIAGNOSTICS = {
    "angle": Diagnostic(angle),
    "tkl": Diagnostic(tkl),
    "branches": Diagnostic(
        branches, "a global and a personal branch", lambda m, given: type(m).branches is not Method.branches
    ),
    "closed": Diagnostic(closed, "closing rounds (FedPuReL's T_p)", lambda m, given: m.closing > 0),
    "drift": Diagnostic(drift),
    "balance": Diagnostic(balance),
    "variance": Diagnostic(variance),
    "clusters": Diagnostic(
        clusters, "clusters of clients", lambda m, given: any(isinstance(s, Cluster) for s in m.share.values())
    ),
    "bandit": Diagnostic(bandit, "a bandit (method.bandit=true)", lambda m, given: bool(getattr(m, "bandit", False))),
    "labels": Diagnostic(labels, "pseudo-labels (labels=copl, …)", lambda m, given: not given),
}


def choose(names: Iterable[str], method: Method, given: bool) -> tuple[str, ...]:
    """The diagnostics of these names, each once; `all` is all that fit. A method that trains nothing has no rounds."""
    asked = list(names)
    for name in asked:
        if name not in (*DIAGNOSTICS, ALL):
            raise unknown("diagnostic", name, [*DIAGNOSTICS, ALL], "fedtailor list diagnostics")
        if name != ALL and method.trains and not DIAGNOSTICS[name].fits(method, given):
            needs = DIAGNOSTICS[name].needs
            raise UserError(f"record={name} needs {needs}, and this run has none; record=all takes those that apply")
    wanted = (n for n, d in DIAGNOSTICS.items() if n in asked or (ALL in asked and d.fits(method, given)))
    return tuple(wanted) if method.trains else ()


def measure(names: Iterable[str], seen: RoundView) -> dict[str, Any]:
    return {name: DIAGNOSTICS[name].measure(seen) for name in names}
