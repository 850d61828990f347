"""Tailor a frozen CLIP to many sites at once, without their images leaving them.

import fedtailor

result = fedtailor.run("promptfl", data="drawn-lt", rounds=10)
print(result.summary["zero_shot"]["overall"], result.summary["global"]["overall"])
"""

from __future__ import annotations

__version__ = "0.1.0"

from .api import resume, run
from .config import Run, make_run
from .core import FIXED, GLOBAL, LOCAL, Batch, Cluster, Each, Me, Method, Params, Reply, Scope, Server
from .errors import UserError
from .result import Result

__all__ = [
    "FIXED",
    "GLOBAL",
    "LOCAL",
    "Batch",
    "Cluster",
    "Each",
    "Me",
    "Method",
    "Params",
    "Reply",
    "Result",
    "Run",
    "Scope",
    "Server",
    "UserError",
    "__version__",
    "make_run",
    "resume",
    "run",
]
