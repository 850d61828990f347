"""One step of a client: the single function that every engine calls.

What a client may know goes in, what may leave it comes out. A method cannot leak local state even by mistake: whatever
its pass returns, LOCAL and FIXED parameters and `keep` are taken out here before anything travels.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..base.errors import Diverged, UserError
from ..base.rng import generator
from ..core.model import Model
from ..core.statistics import check_statistics
from ..core.types import FIXED, LOCAL, OWN, Balance, Me, Params, Pass, Rebalancer, Reply, Samples
from ..labelers.base import CANDIDATES, INDEX, LABEL
from ..privacy.base import Leaving
from ..privacy.noise import Noise, client_secret, new_secret, request_key, seeded_secret
from .compression import compress, decompress
from .job import LABELER_PREFIX, ClientState, Job, Task, size, theta_of, to_cpu


@dataclass(frozen=True)
class StepTrace:
    """One step as a diagnostic sees it: what went down and came up, and the client before and after."""

    client: int
    task: Task
    reply: Reply
    before: ClientState
    after: ClientState


def reply_bytes(reply: Reply) -> int:
    return size(reply.params) + size(reply.stats)


def copies(params: Params) -> Params:
    return {name: value.clone() for name, value in params.items()}


def client_step(
    job: Job,
    who: int,
    pass_: Pass,
    task: Task,
    client: ClientState,
    data: Samples,
    secret: bytes = b"",  # of the place where it keeps its states, for noise; a new one, if there is none
) -> tuple[Reply, ClientState]:
    """Run one pass on one client. Returns what leaves it, packed, and its new state."""
    theta = theta_of(job, task.params, client)
    at = f"{type(job.method).__name__}.{task.pass_name}, client {who}, round {task.round + 1}"
    path = "round", task.round, "client", who, task.pass_name
    rng = generator(job.seed, *path)
    # A pass gets copies: nothing it does in place can reach the server or another client.
    given = {n: job.model.put(v.clone()) for n, v in theta.items()}
    samples = len(data)
    labels = task.pass_name.startswith(LABELER_PREFIX)
    data = data.unlabelled() if labels else labelled_data(job, who, client, data)
    hold = LazyBalance(job.rebalancer, client, generator(job.seed, *path, "rebalance"))
    data = data if job.rebalancer is None else data.balanced(hold)
    predict = own_predict(job, client, given)
    noise = None if job.privacy is None else noise_of(job, who, task, client, secret)
    steps = None if job.privacy is None or noise is None else job.privacy.steps(samples, noise)
    me = Me(who, task.round, data, copies(client.memory), copies(task.inbox), rng, predict, steps)
    try:
        reply = pass_(job.model, me, given)
    except UserError as error:
        raise UserError(f"{at}: {error}") from error
    except Exception as error:
        error.add_note(f"in {at}")
        raise
    if not isinstance(reply, Reply):
        raise UserError(f"{at}: a pass gives back a Reply, got {type(reply).__name__}")
    params = to_cpu(reply.params)
    check_params(params, theta, at)
    check_weight(job, reply, samples, at)
    leaves = {n: v for n, v in params.items() if job.scopes[n] not in (LOCAL, FIXED)}
    up = Reply(leaves, float(reply.weight), to_cpu(reply.stats))
    forms = job.statistics(task.pass_name)
    check_statistics(up.stats, forms, samples, at)
    if job.privacy is not None and noise is not None:
        reached = to_cpu(steps.reached) if steps and steps.reached else None
        up = job.privacy(up, Leaving(task.params, forms, samples, job.cohort, noise, reached))
    if job.attack is not None and who in job.bad:
        up = job.attack.forged(up, task.params)
    kept = to_cpu({**reply.keep, **hold.keep()})
    stays = ClientState(
        local={**client.local, **{n: v for n, v in params.items() if job.scopes[n] == LOCAL}},
        memory={**client.memory, **copies(kept)},
        # Shared parameters that a method kept back this time are as much the client's last as those it sent.
        tuned=client.tuned if job.personal else {**client.tuned, **copies(leaves | own_names(kept, theta))},
        version=client.version + 1,
    )
    packed = compress(up.params, task.params, job.updates, generator(job.seed, *path, "rounding"))
    return replace(up, params=packed), stays


def noise_of(job: Job, who: int, task: Task, client: ClientState, secret: bytes) -> Noise:
    seeded = job.privacy is not None and job.privacy.generator == "seeded"
    own = seeded_secret(job.seed, who) if seeded else client_secret(secret or new_secret(), who)
    asked = {"params": task.params, "inbox": task.inbox, "local": client.local, "memory": client.memory}
    return Noise(request_key(own, (task.round, task.pass_name), asked))


def decompressed(job: Job, task: Task, reply: Reply) -> Reply:
    """A client's reply as the server reads it."""
    return replace(reply, params=decompress(reply.params, task.params, job.updates))


def check_reply(job: Job, task: Task, reply: Reply, samples: int, at: str) -> None:
    """For a remote reply: all that `client_step` makes sure of for one from here, a client with so many samples."""
    check_params(reply.params, task.params, at)
    check_weight(job, reply, samples, at)
    check_statistics(reply.stats, job.statistics(task.pass_name), samples, at)


class LazyBalance:
    """A rebalancer's balance of one pass, begun when the first batch is drawn, if one is."""

    def __init__(self, rebalancer: Rebalancer | None, client: ClientState, rng: torch.Generator) -> None:
        self.rebalancer, self.memory, self.rng = rebalancer, client.memory, rng
        self.balance: Balance | None = None

    def __call__(self, counts: Tensor) -> Balance:
        assert self.rebalancer is not None
        self.balance = self.balance or self.rebalancer.begin(copies(self.memory), counts, self.rng)
        return self.balance

    def keep(self) -> Params:
        return {} if self.balance is None else self.balance.keep()


def labelled_data(job: Job, who: int, client: ClientState, data: Samples) -> Samples:
    """The client's pictures with the labels that it has of its own and those that a labeler gave: none before it did,
    which may leave nothing to train on. As they are where labels are given, or are the server's own."""
    if job.labeler is None or (who == OWN and INDEX not in client.memory):
        return data
    none = torch.empty(0, dtype=torch.int64)
    memory = {INDEX: none, LABEL: none, **client.memory}
    return data.completed(memory[INDEX], memory[LABEL], memory.get(CANDIDATES))


def own_predict(job: Job, client: ClientState, theta: Params) -> Callable[[Tensor], Tensor]:
    """The client's own model; what is shared alone until it has parameters of its own."""
    predict = job.method.predict_shared if job.personal and not client.local else job.method.predict
    models: list[Model] = []  # made when first asked: most passes never ask

    def logits(x: Tensor) -> Tensor:
        models[:] = models or [job.model.remembering()]
        return predict(models[0], theta, x)

    return logits


def own_names(kept: Params, theta: Params) -> Params:
    return {name: value for name, value in kept.items() if name in theta}


def check_weight(job: Job, reply: Reply, samples: int, at: str) -> None:
    """Nobody counts for more pictures than they have; but a labeler may give one several labels, each once."""
    most = max(1, samples if job.labeler is None else samples * job.model.classes)
    if not 0 <= reply.weight <= most:
        raise UserError(f"{at}: a reply of a client with {samples} samples weighs 0 to {most}, got {reply.weight:g}")


def check_params(params: Params, theta: Params, at: str) -> None:
    for name, value in params.items():
        if name not in theta:
            raise UserError(f"{at}: returned an unknown parameter {name!r}; known: {', '.join(theta)}")
        if value.shape != theta[name].shape:
            raise UserError(f"{at}: {name} came back as {tuple(value.shape)}, it is {tuple(theta[name].shape)}")
        if value.dtype != theta[name].dtype:
            raise UserError(f"{at}: {name} came back as {value.dtype}, it is {theta[name].dtype}")
        if not torch.isfinite(value).all():
            raise Diverged(f"{at}: {name} is no longer finite; training diverged, a smaller lr may help")
