"""Flower's SuperNode as a process of ours: `python -m fedtailor.flower.supernode PARENT LIMIT OPTIONS…`

It carries messages and runs nothing: what they ask for is done by the site's own process (worker.py), whatever app the
server may send along. It ends when that process does.

It looks for messages every half second while there is work, since Flower's 3 s are most of what a short pass takes, and
every ten seconds when there has been none for long, since each look takes the server some milliseconds. And it
sends a reply as soon as there is one; Flower's looks for replies only after a message, and takes any for the one to
that message: after a late one, as when the server was restarted, the next would be stuck. Of a message that is longer
than the limit, in bytes, it does not fetch the rest; Flower's fetches any. Whenever the server has answered it touches
a file, by which the site knows.
"""

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..base.polling import Backoff
from .private.supernode import (
    ObjectPullError,
    flower_supernode,
    look_otherwise,
    pull_and_store,
    start_parent_process_monitor,
)
from .process import ALIVE

# Seconds between two looks for a message: at first, at most (after four minutes), and their growth, which keeps what
# is waited beyond need to a twenty-fifth of what has been waited.
PAUSES = 0.5, 10.0, 1.04


PullObject = Callable[[int, str], bytes]


def limited(pull_object: PullObject, limit: float) -> PullObject:
    """For one message, whose pieces several threads may pull."""
    sizes: list[int] = []

    def pull(run: int, name: str) -> bytes:
        if (size := sum(sizes)) > limit:
            raise ObjectPullError(name, f"the message has more than {limit / 1e6:.0f} MB, {size / 1e6:.0f} so far")
        piece = pull_object(run, name)
        sizes.append(len(piece))
        return piece

    return pull


def main() -> None:
    start_parent_process_monitor(int(sys.argv[1]))
    limit = float(sys.argv[2])
    sys.argv = ["flower-supernode", *sys.argv[3:]]
    alive, pause = Path(os.environ["FLWR_HOME"]) / ALIVE, Backoff(*PAUSES)

    def pull_or_push(*, state: Any, pull_object: PullObject, **more: Any) -> int | None:
        """Other than None makes the node look for replies; it then waits for none, since there are some."""
        got = pull_and_store(state=state, pull_object=limited(pull_object, limit), **more)
        alive.touch()
        if got is None:
            with state.lock_msg_store:
                unsent = [entry.message for entry in state.msg_store.values() if not entry.is_retrieved]
            if not any(message.metadata.reply_to_message_id for message in unsent):
                return None
        pause.reset()
        return got or 0

    # Flower's 3 s between two looks; its other pauses are shorter, and stay.
    look_otherwise(pull_or_push, lambda seconds: time.sleep(seconds if seconds < 1 else pause.next()))
    flower_supernode()


if __name__ == "__main__":
    main()
