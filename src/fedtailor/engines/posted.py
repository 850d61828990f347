"""For tests: everything that a client sends or receives passes as bytes, and in another order.

What only works because two parties share memory, or because clients are served in a certain order, fails here.
"""

from __future__ import annotations

from ..core import Reply
from ..visit import Task
from ..wire import client_from_bytes, client_to_bytes, reply_from_bytes, reply_to_bytes, task_from_bytes, task_to_bytes
from .local import LocalEngine


class PostedEngine(LocalEngine):
    def run(self, tasks: dict[int, Task]) -> dict[int, Reply]:
        letters = {k: task_to_bytes(task) for k, task in tasks.items()}
        answers: dict[int, bytes] = {}
        for k in reversed(letters):
            self.clients[k] = client_from_bytes(client_to_bytes(self.clients[k]))
            answers[k] = reply_to_bytes(self.call(k, task_from_bytes(letters[k])))
        # An odd-even order: neither that of the cohort nor its reverse.
        arrived = [*list(answers)[::2], *list(answers)[1::2]]
        return {k: reply_from_bytes(answers[k]) for k in arrived}
