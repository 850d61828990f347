"""How a pass reaches the clients of a cohort. A method never knows which."""

from __future__ import annotations

from .local import LocalEngine
from .posted import PostedEngine

ENGINES: dict[str, type[LocalEngine]] = {
    "local": LocalEngine,
    "posted": PostedEngine,
}
# Their clients are elsewhere. The module is imported when it is asked for, since it needs more than the rest does.
ELSEWHERE = {
    "flower": ("fedtailor.flower.simulation", "Flower's simulation: clients in other processes, by Ray."),
}
