"""Of Flower's ServerApps: the Grid over which they reach nodes."""

from flwr.serverapp import Grid
from flwr.supercore.run import Run, RunNotRunningException
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.superlink.grid import HttpGrid, InMemoryGrid


def grid_over(client: RuntimeHttpClient, run: int, address: str, certificate: bytes, token: str) -> Grid:
    """Over a connection of ours, which tries again for a while; Flower's own ends this process by a signal when it
    gives up."""
    grid = HttpGrid(address, False, certificate, token=token)
    grid._client = client
    grid.set_run(Run.create_empty(run))
    return grid
