"""The rebalancers by name: `rebalance=fedgrab` goes with any method."""

from ..core.types import Rebalancer
from .fedgrab import FedGraB

REBALANCERS: dict[str, type[Rebalancer]] = {"fedgrab": FedGraB}
