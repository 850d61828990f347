"""An engine whose replies are counted against a privacy budget, and go through a robust step."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ..core.types import OWN, Params, Pass, Reply, Server
from ..privacy.ledger import Ledger
from ..privacy.noise import request_key
from ..robust.base import Robust
from .engine import Engine


@dataclass(frozen=True)
class Guarded:
    """Of one round, or one try of it."""

    engine: Engine
    robust: Robust | None
    ledger: Ledger | None
    asked: dict[int, bytes] = field(default_factory=dict)  # of each client: its last request, after all before it

    def __call__(
        self, pass_: Pass, server: Server, cohort: Sequence[int], inbox: Mapping[int, Params] | None = None
    ) -> dict[int, Reply]:
        job, name = self.engine.job, self.engine.job.pass_name(pass_)
        requests = self.requests(pass_, server, cohort, inbox) if self.ledger else {}
        if self.ledger and requests:
            self.ledger.ask(name, job.statistics(name), requests)
        replies = self.engine(pass_, server, cohort, inbox)
        if self.ledger and requests:
            self.ledger.answered(name, job.statistics(name), requests, replies)
        if self.robust is None:
            return replies
        own = {OWN: replies.pop(OWN)} if OWN in replies else {}  # the server's own data is beyond suspicion
        return {**own, **self.robust(replies, {k: server.params_for(k, job.scopes) for k in replies})}

    def requests(
        self, pass_: Pass, server: Server, cohort: Sequence[int], inbox: Mapping[int, Params] | None
    ) -> dict[int, str]:
        """What each client is about to be asked, with what it was asked before: so it is known if it comes again."""
        tasks = self.engine.tasks(pass_, server, [k for k in cohort if k != OWN], inbox)
        for k, task in tasks.items():
            groups = {"params": task.params, "inbox": task.inbox}
            self.asked[k] = request_key(self.asked.get(k, b""), (k, task.round, task.pass_name), groups)
        return {k: self.asked[k].hex() for k in tasks}
