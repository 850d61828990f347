"""Momentum that is handed on from client to client, as the released codes of the PromptFL family happen to do."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from .types import Each, Params, Pass, Reply, Server

# --- momentum that is carried on ------------------------------------------------------------------------------------
# The released codes of the PromptFL family keep one optimiser for all clients: the momentum of one client's last step
# pushes the next one's first. Only for parity with them, and only where clients are simulated one after the other.

HANDED = "velocity."


def handed(inbox: Params) -> Params:
    return {name.removeprefix(HANDED): value for name, value in inbox.items() if name.startswith(HANDED)}


def handed_on(velocity: Params, without: Collection[str] = ()) -> Params:
    return {HANDED + name: value for name, value in velocity.items() if name not in without}


def relay(
    pass_: Pass,
    server: Server,
    cohort: Sequence[int],
    each: Each,
    inbox: Mapping[int, Params] | None = None,
    chain: Params | None = None,
) -> tuple[Server, dict[int, Reply]]:
    """One client after the other, in the cohort's order, each handed the momentum of the one before it that answered.

    With a `chain`, parameters are handed on too: each client begins where the one before it stopped, and `chain`
    holds what the last one reached.
    """
    velocity, replies = handed_on(handed(server.state)), {}
    for k in cohort:
        at = server if chain is None else replace(server, params={**server.params, **chain}, cluster_of={})
        reply = each(pass_, at, [k], {k: {**(inbox or {}).get(k, {}), **velocity}}).get(k)
        if reply is None:
            continue
        velocity |= handed_on(handed(reply.stats))
        replies[k] = replace(reply, stats={n: v for n, v in reply.stats.items() if n not in velocity})
        if chain is not None:
            chain |= reply.params
    return replace(server, state={**server.state, **velocity}), replies
