"""Flower's SuperNode as a process of ours: `python -m fedtailor.flower.node PARENT SUPERNODE-OPTIONS…`

It carries messages and runs nothing: what they ask for is done by the site's own process (worker.py), whatever app the
server may send along. It ends when that process does.
"""

from __future__ import annotations

import sys
import time
from types import SimpleNamespace

from flwr.supercore.app_utils import start_parent_process_monitor
from flwr.supernode import start_client_internal
from flwr.supernode.cli.flower_supernode import flower_supernode

PAUSE = 0.5  # seconds between two looks for a message; Flower's own 3 are most of what a short pass would take


def main() -> None:
    start_parent_process_monitor(int(sys.argv[1]))
    start_client_internal.time = SimpleNamespace(sleep=lambda seconds: time.sleep(min(seconds, PAUSE)))  # type: ignore
    sys.argv = ["flower-supernode", *sys.argv[2:]]
    flower_supernode()


if __name__ == "__main__":
    main()
