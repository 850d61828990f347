"""Flower's SuperNode as a process of ours: `python -m fedtailor.flower.node PARENT SUPERNODE-OPTIONS…`

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

PAUSE = 0.5  # seconds between two looks for a message


def answers_wait(state: Any) -> bool:
    with state.lock_msg_store:
        entries = list(state.msg_store.values())
    return any(entry.message.metadata.reply_to_message_id and not entry.is_retrieved for entry in entries)


def main() -> None:
    start_parent_process_monitor(int(sys.argv[1]))
    sys.argv = ["flower-supernode", *sys.argv[2:]]
    pull = internal._pull_and_store_message

    def pull_or_push(*, state: Any, **more: Any) -> int | None:
        """What it gives decides whether answers are looked for; they are not waited for then, since there are some."""
        got = pull(state=state, **more)
        return 0 if got is None and answers_wait(state) else got

    patched: Any = internal
    patched._pull_and_store_message = pull_or_push
    patched.time = SimpleNamespace(sleep=lambda seconds: time.sleep(min(seconds, PAUSE)))
    flower_supernode()


if __name__ == "__main__":
    main()
