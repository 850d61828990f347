"""Tailor a frozen CLIP to many sites at once, without their images leaving them.

import fedtailor

result = fedtailor.run("promptfl", data="drawn-lt", rounds=10)
print(result.summary["zero_shot"]["overall"], result.summary["global"]["overall"])
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

from .base.version import __version__

if TYPE_CHECKING:
    from .base.errors import UserError
    from .core.method import Method
    from .core.model import Model, Tuner
    from .core.types import FIXED, GLOBAL, LOCAL, Batch, Cluster, Each, Me, Params, Reply, Scope, Server
    from .exports.export import Exported, export
    from .labelers.base import Labeler
    from .runs.callback import Callback
    from .runs.comparison import Comparison, compare
    from .runs.execute import resume, run
    from .runs.result import Result
    from .settings.extensions import register
    from .settings.run import Run, make_run
    from .trackers import track
    from .use.load import load
    from .use.model import Prediction, TunedModel

# OpenMP's threads spin while they wait, unless told otherwise before torch loads them: beside another busy process, a
# step then takes ten times its CPU time. Whoever sets the variable knows better.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# Where each public name lives. They are fetched when first asked for: importing torch takes seconds, and neither
# `fedtailor --help` nor a progress display should have to wait for it.
HOMES = {
    "UserError": "base.errors",
    **dict.fromkeys(("FIXED", "GLOBAL", "LOCAL", "Batch", "Cluster", "Each", "Me", "Method", "Model"), "core"),
    **dict.fromkeys(("Params", "Reply", "Scope", "Server", "Tuner"), "core"),
    "Labeler": "labelers.base",
    "register": "settings.extensions",
    **dict.fromkeys(("Run", "make_run"), "settings.run"),
    "Callback": "runs.callback",
    **dict.fromkeys(("resume", "run"), "runs.execute"),
    **dict.fromkeys(("Comparison", "compare"), "runs.comparison"),
    "Result": "runs.result",
    "track": "trackers",
    "load": "use.load",
    **dict.fromkeys(("Exported", "export"), "exports.export"),
    **dict.fromkeys(("Prediction", "TunedModel"), "use.model"),
}

__all__ = [
    "FIXED", "GLOBAL", "LOCAL", "Batch", "Callback", "Cluster", "Comparison", "Each", "Exported", "Labeler", "Me",
    "Method", "Model", "Params", "Prediction", "Reply", "Result", "Run", "Scope", "Server", "TunedModel", "Tuner",
    "UserError", "__version__", "compare", "export", "load", "make_run", "register", "resume", "run", "track",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{HOMES[name]}", __name__), name)


def __dir__() -> list[str]:
    return __all__
