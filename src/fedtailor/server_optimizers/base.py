"""What server optimisers have in common.

Notation: Δ_t → what a round changed in the server's parameters, m_t, v_t → state "server.m.*", "server.v.*".
Departures: only the server's parameters take such a step, not the clusters' copies.
"""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from fnmatch import fnmatchcase

from torch import Tensor

from ..core import Options, Params, Server


class ServerOptimizer(Options):
    def __call__(self, before: Server, after: Server, made: Sequence[str] = ()) -> Server:
        """The server after a round, with this step in place of the plain one; `made` parameters stay as they are."""
        params, state = dict(after.params), dict(after.state)
        for name, value in after.params.items():
            change = value - before.params[name]
            if not any(fnmatchcase(name, pattern) for pattern in made) and change.count_nonzero():
                params[name] = value + self.beyond(change, name, state)
        return replace(after, params=params, state=state)

    @abstractmethod
    def beyond(self, change: Tensor, name: str, state: Params) -> Tensor:
        """How much further than the average to go; remembers what it must in `state`."""
