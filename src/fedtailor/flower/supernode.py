"""Flower's SuperNode as a process of ours: `python -m fedtailor.flower.supernode PARENT SUPERNODE-OPTIONS…`

It carries messages and runs nothing: what they ask for is done by the site's own process (worker.py), whatever app the
server may send along. It ends when that process does.

Two things are set right in it. It looks for messages every half second, where Flower's own 3 are most of what a short
pass takes. And it sends an answer as soon as there is one. Flower's looks for answers only when it got a message, and
takes any for its own: after one that comes late, as when the server was restarted, the next would lie there for ever.
"""

from __future__ import annotations

import sys
import time
from types import SimpleNamespace
from typing import Any

from flwr.supercore.app_utils import start_parent_process_monitor
from flwr.supernode import start_client_internal as internal
from flwr.supernode.cli.flower_supernode import flower_supernode

PAUSES = 0.5, 3.0  # seconds between two looks for a message: while there is work, and when there has been none for long
LONG = 60.0  # seconds


def answers_wait(state: Any) -> bool:
    with state.lock_msg_store:
        entries = list(state.msg_store.values())
    return any(entry.message.metadata.reply_to_message_id and not entry.is_retrieved for entry in entries)


def main() -> None:
    start_parent_process_monitor(int(sys.argv[1]))
    sys.argv = ["flower-supernode", *sys.argv[2:]]
    pull, busy = internal._pull_and_store_message, time.monotonic()

    def pull_or_push(*, state: Any, **more: Any) -> int | None:
        """What it gives decides whether answers are looked for; they are not waited for then, since there are some."""
        nonlocal busy
        got = pull(state=state, **more)
        got = 0 if got is None and answers_wait(state) else got
        busy = busy if got is None else time.monotonic()
        return got

    def sleep(seconds: float) -> None:
        time.sleep(min(seconds, PAUSES[time.monotonic() - busy > LONG]))

    patched: Any = internal
    patched._pull_and_store_message, patched.time = pull_or_push, SimpleNamespace(sleep=sleep)
    flower_supernode()


if __name__ == "__main__":
    main()
