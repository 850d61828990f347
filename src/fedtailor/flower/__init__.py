"""Flower: clients in other processes and other places. Nothing outside this folder imports flwr.

Whoever imports this first sets flwr's environment: it tells nobody anything, installs nothing, and keeps its files in
a home of ours, not in the user's; unless this is a process of Flower's own, which has its home.
"""

import importlib.util
import os
import sys
from importlib.metadata import version

from platformdirs import user_cache_path

from ..base.errors import UserError

OFF = "FLWR_TELEMETRY_ENABLED", "RAY_USAGE_STATS_ENABLED", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"
ON = "FLWR_DISABLE_UPDATE_CHECK", "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION"
os.environ.update(dict.fromkeys(OFF, "0") | dict.fromkeys(ON, "1"))
if "flwr" not in sys.modules:
    os.environ.setdefault("FLWR_HOME", str(user_cache_path("fedtailor") / "flower"))
MADE_FOR = "1.41"  # of flwr, from one minor version to the next of which what is not public may change


def need(module: str) -> None:
    """A clear word where an optional package is not installed."""
    if importlib.util.find_spec(module) is None:
        raise UserError(f"this needs {module}: pip install 'fedtailor[flower]'")


need("flwr")
if version("flwr").split(".")[:2] != MADE_FOR.split("."):
    raise UserError(f"this needs flwr {MADE_FOR}, and {version('flwr')} is installed: pip install 'fedtailor[flower]'")
