"""The engines by name: how a pass reaches the clients of a cohort. A method never knows which.

An engine's module has `make_engine(experiment, clients, folder)`. It is imported when it is asked for, since it may
need packages that the rest does not.
"""

from typing import NamedTuple


class EngineEntry(NamedTuple):
    module: str
    idea: str
    remote: bool = False  # whether clients are in other processes, and keep what is theirs to themselves


ENGINES = {
    "local": EngineEntry("fedtailor.simulation.local", "Clients side by side in this process; other engines equal it."),
    "stacked": EngineEntry("fedtailor.simulation.stacked", "Clients in step, small matrices as one large one."),
    "auto": EngineEntry("fedtailor.simulation.auto", "local or stacked, whichever was measured to be faster."),
    "flower": EngineEntry("fedtailor.flower.simulation", "Flower's simulation: clients in processes of Ray.", True),
}
