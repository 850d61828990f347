"""An engine whose replies a robust step has been through."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..core.types import OWN, Params, Pass, Reply, Server
from ..robust.base import Robust
from .engine import Engine


@dataclass(frozen=True)
class RobustEach:
    engine: Engine
    robust: Robust

    def __call__(
        self, pass_: Pass, server: Server, cohort: Sequence[int], inbox: Mapping[int, Params] | None = None
    ) -> dict[int, Reply]:
        replies = self.engine(pass_, server, cohort, inbox)
        own = {OWN: replies.pop(OWN)} if OWN in replies else {}  # the server's own data is beyond suspicion
        starts = {k: server.params_for(k, self.engine.job.scopes) for k in replies}
        return {**own, **self.robust(replies, starts)}
