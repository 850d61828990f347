"""The rebalancers by name: `rebalance=fedgrab` goes with any method."""

from __future__ import annotations

from .base import Balance, Rebalancer
from .fedgrab import FedGraB

__all__ = ["REBALANCERS", "Balance", "Rebalancer"]

REBALANCERS: dict[str, type[Rebalancer]] = {"fedgrab": FedGraB}
