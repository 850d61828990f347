"""What a method's server side decided: who goes with whom, and when to aggregate."""

from __future__ import annotations

from typing import Any

from ...algorithms.bandit import Bandit
from ...core.types import CLUSTERED
from .round import RoundView


def clusters(seen: RoundView) -> dict[str, dict[str, int]]:
    """Which cluster each client of the cohort was put into, clustering by clustering. CAPT Fig. 7"""
    state, held = seen.after.state, seen.after.cluster_of
    now = {name: {str(k): int(of[k]) for k in seen.cohort if k in of} for name, of in held.items()}
    # A global aggregation has emptied `cluster_of`; a method that has one notes what it was before.
    noted = {n.removeprefix(CLUSTERED): table.tolist() for n, table in state.items() if n.startswith(CLUSTERED)}
    return now | {name: {str(k): c for k, c in zip(*table, strict=True)} for name, table in noted.items()}


def bandit(seen: RoundView) -> dict[str, Any]:
    """Arms drawn, whether the round ended in a global aggregation, its reward, what the bandit knows. CAPT App. A"""
    state = seen.after.state
    learner = Bandit.from_params(state) if "values" in state else Bandit()
    aggregated = int(state["since"]) == seen.after.round
    return {
        "arms": state["arms"].tolist(),
        "aggregated": aggregated,
        "reward": float(state["reward"]) if aggregated and "reward" in state else None,
        "values": {str(arm): value for arm, value in zip(learner.arms, learner.values, strict=True)},
        "pulls": {str(arm): pulls for arm, pulls in zip(learner.arms, learner.pulls, strict=True)},
    }
