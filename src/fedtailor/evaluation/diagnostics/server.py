"""What a method's server side decided: who goes with whom, and when to aggregate."""

from ...core.types import CLUSTERED
from .round import RoundView


def clusters(seen: RoundView) -> dict[str, dict[str, int]]:
    """Which cluster each client of the cohort was put into, clustering by clustering. CAPT Fig. 7"""
    state, held, name_of = seen.after.state, seen.after.cluster_of, seen.federation.name_of
    now = {name: {name_of(k): int(of[k]) for k in seen.cohort if k in of} for name, of in held.items()}
    # A global aggregation has emptied `cluster_of`, but the state still notes this round's clusters.
    noted = {n.removeprefix(CLUSTERED): table.tolist() for n, table in state.items() if n.startswith(CLUSTERED)}
    return now | {name: {name_of(k): c for k, c in zip(*table, strict=True)} for name, table in noted.items()}


def bandit(seen: RoundView) -> dict[str, object]:
    """Arms drawn, whether the round ended in a global aggregation, its reward, what the bandit knows. CAPT App. A"""
    return seen.job.method.decisions(seen.after)["bandit"]
