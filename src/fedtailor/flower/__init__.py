"""Flower: clients in other processes and other places. Nothing outside this folder imports flwr, and what
flwr does not document, nothing outside private/.

Whoever imports this first sets flwr's environment: it tells nobody anything, installs nothing, and keeps its files in
a home of ours, not in the user's; unless this is a process of Flower's own, which has its home. And Ray, which would
take this machine's address for 127.0.0.1 and listen everywhere, is told that it makes no cluster, as on macOS and
Windows: then all its processes listen on the loopback. Where there is a proxy, what goes from one process to another on
this machine does not go through it.
"""

import importlib.util
import os
import sys
from importlib.metadata import version

from platformdirs import user_cache_path

from ..base.errors import UserError

OFF = (
    "FLWR_TELEMETRY_ENABLED", "RAY_USAGE_STATS_ENABLED", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER",
)  # fmt: skip
ON = "FLWR_DISABLE_UPDATE_CHECK", "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION"
os.environ.update(dict.fromkeys(OFF, "0") | dict.fromkeys(ON, "1"))
if "flwr" not in sys.modules:
    os.environ.setdefault("FLWR_HOME", str(user_cache_path("fedtailor") / "flower"))
MADE_FOR = "1.41"  # of flwr, from one minor version to the next of which what is not public may change
DIRECT = ",".join(filter(None, [os.environ.get("no_proxy") or os.environ.get("NO_PROXY"), "127.0.0.1", "localhost"]))
os.environ.update(no_proxy=DIRECT, NO_PROXY=DIRECT)


def need(module: str) -> None:
    """A clear word where an optional package is not installed."""
    if importlib.util.find_spec(module) is None:
        raise UserError(f"this needs {module}: pip install 'fedtailor[flower]'")


need("flwr")
if version("flwr").split(".")[:2] != MADE_FOR.split("."):
    raise UserError(f"this needs flwr {MADE_FOR}, and {version('flwr')} is installed: pip install 'fedtailor[flower]'")
