"""Of `flower-supernode`: the command, and the step that it takes over and over."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from flwr.supercore.app_utils import start_parent_process_monitor
from flwr.supercore.inflatable.inflatable_utils import ObjectPullError
from flwr.supernode import start_client_internal
from flwr.supernode.cli.flower_supernode import flower_supernode

pull_and_store = start_client_internal._pull_and_store_message


def look_otherwise(step: Callable[..., int | None], sleep: Callable[[float], None]) -> None:
    """`step` in place of `pull_and_store`, and all pauses of the node by `sleep`."""
    patched: Any = start_client_internal
    patched._pull_and_store_message, patched.time = step, SimpleNamespace(sleep=sleep)
