"""What closing rounds would make of a round's models, tried out on copies."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ...client.job import ClientState, Task
from ...client.step import client_step, decompressed
from ...core.types import Params, Pass, Reply, Server
from ..testing import score_clients
from .round import RoundView


def closed(seen: RoundView) -> dict[str, float | None] | None:
    """The clients' scores if this were the last shared round, and the closing ones came now. FedPuReL Fig. 9

    What a run of so few rounds would end with, if its learning rate does not depend on their number. The paper draws
    a personal curve from the first round on, but by its Algorithm 1 there is no φ_k before the last: `personal` is φ_g
    alone until then. Each client's φ_k starts anew here, and is forgotten. None in a round that is not tested.
    """
    if seen.personal is None:
        return None
    job, server, method = seen.job, seen.after, seen.job.method
    if server.round > job.rounds:  # these are the closing rounds
        return seen.personal.values
    states: dict[int, ClientState] = {k: seen.clients[k] for k in seen.clients}

    def each(
        pass_: Pass, server: Server, cohort: Sequence[int], inbox: Mapping[int, Params] | None = None
    ) -> dict[int, Reply]:
        replies = {}
        for k in sorted(cohort):
            down = server.params_for(k, job.scopes)
            task = Task(job.pass_name(pass_), server.round, down, (inbox or {}).get(k, {}))
            packed, states[k] = client_step(job, k, pass_, task, states.get(k, ClientState()), seen.data[k])
            replies[k] = decompressed(job, task, packed)
        return replies

    for _ in range(method.closing):
        server = replace(method.close(server, method.everyone(job.clients), each), round=server.round + 1)
    return score_clients(job, server, states, seen.tests).mean().values
