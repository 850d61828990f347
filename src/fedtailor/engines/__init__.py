"""How a pass reaches the clients of a cohort. A method never knows which."""

from __future__ import annotations

from .local import LocalEngine
from .posted import PostedEngine

ENGINES: dict[str, type[LocalEngine]] = {
    "local": LocalEngine,
    "posted": PostedEngine,
}
