"""An engine whose replies are counted against a privacy budget, and go through a robust step."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..core.types import OWN, Params, Pass, Reply, Server
from ..privacy.ledger import Ledger, may_release
from ..robust.base import Robust
from .engine import Engine


@dataclass(frozen=True)
class Guarded:
    engine: Engine
    robust: Robust | None
    ledger: Ledger | None

    def __call__(
        self, pass_: Pass, server: Server, cohort: Sequence[int], inbox: Mapping[int, Params] | None = None
    ) -> dict[int, Reply]:
        job, name = self.engine.job, self.engine.job.pass_name(pass_)
        forms, known = job.statistics(name), self.engine.releases
        if self.ledger:
            self.ledger.check(known.get(name, may_release(forms)), [k for k in cohort if k != OWN])
        replies = self.engine(pass_, server, cohort, inbox)
        if self.ledger:
            known[name] = self.ledger.count(replies, forms)
        if self.robust is None:
            return replies
        own = {OWN: replies.pop(OWN)} if OWN in replies else {}  # the server's own data is beyond suspicion
        return {**own, **self.robust(replies, {k: server.params_for(k, job.scopes) for k in replies})}
