"""Tailor a frozen CLIP to many sites at once, without their images leaving them.

import fedtailor

result = fedtailor.run("promptfl", data="drawn-lt", rounds=10)
print(result.summary["zero_shot"]["overall"], result.summary["global"]["overall"])
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from .api import Watcher, resume, run
    from .comparison import Comparison, compare
    from .config import Run, make_run
    from .core import FIXED, GLOBAL, LOCAL, Batch, Cluster, Each, Me, Method, Params, Reply, Scope, Server
    from .errors import UserError
    from .result import Result

# Where each public name lives. They are fetched when first asked for: importing torch takes seconds, and neither
# `fedtailor --help` nor a progress display should have to wait for it.
HOMES = {
    "api": ("Watcher", "resume", "run"),
    "comparison": ("Comparison", "compare"),
    "config": ("Run", "make_run"),
    "core": (
        "FIXED", "GLOBAL", "LOCAL", "Batch", "Cluster", "Each", "Me", "Method", "Params", "Reply", "Scope", "Server",
    ),
    "errors": ("UserError",),
    "result": ("Result",),
}  # fmt: skip

__all__ = [
    "FIXED", "GLOBAL", "LOCAL", "Batch", "Cluster", "Comparison", "Each", "Me", "Method", "Params", "Reply", "Result",
    "Run", "Scope", "Server", "UserError", "Watcher", "__version__", "compare", "make_run", "resume", "run",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    for home, names in HOMES.items():
        if name in names:
            return getattr(import_module(f".{home}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
