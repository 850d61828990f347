"""Server optimisers by name: what a round changed is a step that the server may take with momentum, for any method."""

from .base import ServerOptimizer
from .fedadam import FedAdam
from .fedavgm import FedAvgM

AVERAGE = "average"  # the round's own result
SERVER_OPTIMIZERS: dict[str, type[ServerOptimizer]] = {"fedavgm": FedAvgM, "fedadam": FedAdam}
