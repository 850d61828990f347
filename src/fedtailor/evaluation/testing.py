"""Tests of the server's model on the whole test set, and of every client's model on its own part of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from ..client.features import FeatureStore
from ..client.job import ClientState, Job, theta_of
from ..client.step import own_predict
from ..core.types import Params, Server
from ..data.dataset import Indices
from ..data.groups import Groups
from .metrics import Score, Scores, score, score_parts

CHUNK_BYTES = 4 << 20  # of tower input at once: what a processor's cache holds
PIECE = 512  # test pictures that a worker takes at a time, where one model is asked about many
Logits = Callable[[Tensor], Tensor]
Ask = Callable[[], Indices]  # some predictions, when called


class Workers(Protocol):
    """Who makes predictions: one after the other here, or several at a time."""

    def __call__(self, asked: Sequence[Ask], /) -> list[Indices]: ...


def alone(asked: Sequence[Ask]) -> list[Indices]:
    return [ask() for ask in asked]


@dataclass(frozen=True)
class EvalSet:
    """The test set and each client's part of it. No pass can reach it."""

    features: FeatureStore
    labels: Indices
    parts: tuple[Indices, ...]
    groups: Groups
    plain: FeatureStore | None = None  # CLIP's own features, where `features` are of an earlier stage

    def predict(self, logits: Logits, indices: Indices, features: FeatureStore | None = None) -> Indices:
        if len(indices) == 0:
            return indices
        chunks = in_chunks(logits, features or self.features, indices)
        return np.concatenate([chunk.argmax(dim=1).cpu().numpy() for chunk in chunks])

    def pieces(self, logits: Logits, indices: Indices) -> list[Ask]:
        """The same prediction, in parts that several can make."""
        return [partial(self.predict, logits, indices[i : i + PIECE]) for i in range(0, len(indices), PIECE)]

    def score(self, predicted: Indices, indices: Indices) -> Score:
        return score(self.labels[indices], predicted, self.groups)

    def score_parts(self, predicted: Indices) -> Scores:
        """Every client, from the predictions for its part, one client's after the other's."""
        which, owner = self.dealt
        return score_parts(self.labels[which], predicted, owner, len(self.parts), self.groups)

    def scores(self, said: Said) -> tuple[Score, Scores]:
        return self.score(said.shared, self.everything[: len(said.shared)]), self.score_parts(said.personal)

    @cached_property
    def dealt(self) -> tuple[Indices, Indices]:
        """All parts one after the other, and whose each picture is."""
        sizes, none = [len(part) for part in self.parts], np.empty(0, np.int64)
        return np.concatenate([none, *self.parts]), np.repeat(np.arange(len(sizes)), sizes)

    @cached_property
    def everything(self) -> Indices:
        return np.arange(len(self.labels))

    def of_client(self, k: int) -> EvalSet:
        """One client's part as a test set of its own."""
        mine = self.parts[k]
        plain = self.plain and FeatureSubset(self.plain, mine)
        own = FeatureSubset(self.features, mine)
        return EvalSet(own, self.labels[mine], (np.arange(len(mine)),), self.groups, plain)


@torch.no_grad()
def in_chunks(logits: Logits, source: FeatureStore, indices: Indices) -> Iterator[Tensor]:
    """(B, C) chunk after chunk."""
    step = max(1, CHUNK_BYTES // (4 * source.fetch(indices[:1]).numel()))
    for i in range(0, len(indices), step):
        yield logits(source.fetch(indices[i : i + step]))


@dataclass(frozen=True, eq=False)
class Said:
    """The class that each test picture was said to be of."""

    shared: Indices  # by the server's model, of all pictures; empty where clients share nothing
    personal: Indices  # by each client's own model of its part, in the order of EvalSet.dealt


@dataclass(frozen=True)
class FeatureSubset:
    """Some of the pictures of a feature store, counted from 0."""

    features: FeatureStore
    indices: Indices

    @property
    def fixed(self) -> bool:
        return self.features.fixed

    def fetch(self, indices: Indices, rng: torch.Generator | None = None) -> Tensor:
        return self.features.fetch(self.indices[indices], rng)


def zero_shot(job: Job, tests: EvalSet) -> Said:
    logits = job.model.zero_shot_logits if tests.plain is None else job.model.plain_logits
    predicted = tests.predict(logits, tests.everything, tests.plain)
    return Said(predicted, predicted[tests.dealt[0]])


def score_zero_shot(job: Job, tests: EvalSet) -> tuple[Score, Score]:
    """CLIP's score on the whole set, and the mean of its scores on the clients' parts."""
    whole, parts = tests.scores(zero_shot(job, tests))
    return whole, parts.mean()


def score_shared(job: Job, server: Server, tests: EvalSet, workers: Workers = alone) -> Score:
    """The server's model on the whole test set, if it has one (ask_shared)."""
    said = ask_shared(job, server, tests, workers)
    return tests.score(said, tests.everything[: len(said)])


def ask_shared(
    job: Job, server: Server, tests: EvalSet, workers: Workers = alone, lent: Params | None = None
) -> Indices:
    """Of nothing where clients share nothing, or where the method has a model of all only with what they would have to
    lend, and they can't."""
    none, logits = tests.everything[:0], shared_logits(job, server, lent)
    if logits is None:
        return none
    return np.concatenate([none, *workers(tests.pieces(logits, tests.everything))])


def shared_logits(job: Job, server: Server, lent: Params | None = None) -> Logits | None:
    """The server's model, if there is one."""
    if (job.method.trains and not server.params) or (job.method.lent and not lent):
        return None
    theta = on_device(job, shared_theta(job, server, lent))
    model = job.model.remembering()
    return lambda x: job.method.predict_shared(model, theta, x)


def shared_theta(job: Job, server: Server, lent: Params | None = None) -> Params:
    return theta_of(job, server.params, ClientState(local=lent or {}))


def mean_local(clients: Mapping[int, ClientState], sizes: Mapping[int, int]) -> Params:
    """The mean of what clients keep, weighted by their pictures. It is for a test, within one process: no pass and no
    message ever has it."""
    total, mean = 0, dict[str, Tensor]()
    for k in sorted(k for k in clients if sizes.get(k) and clients[k].local):
        total += sizes[k]
        for name, value in clients[k].local.items():  # one client's at a time in memory
            before = mean.get(name, torch.zeros_like(value, dtype=torch.float64))
            mean[name] = before + (value.double() - before) * (sizes[k] / total)
    return {name: value.float() for name, value in mean.items()}


def score_clients(
    job: Job, server: Server, clients: Mapping[int, ClientState], tests: EvalSet, workers: Workers = alone
) -> Scores:
    """Every client's own model on its own part."""
    return tests.score_parts(ask_clients(job, server, clients, tests, workers))


def ask_clients(
    job: Job, server: Server, clients: Mapping[int, ClientState], tests: EvalSet, workers: Workers = alone
) -> Indices:
    """One client's part after the other. All without a state of their own have one model, asked once."""
    K = len(tests.parts)
    own = sorted({k for known in (clients, *server.cluster_of.values()) for k in known if 0 <= k < K})
    which, owner = tests.dealt
    tuned, predicted = np.isin(owner, own), np.empty_like(which)
    asked, place = np.unique(which[~tuned], return_inverse=True)
    rest: list[Ask] = []
    if len(asked):
        someone = int(owner[~tuned][0])
        rest = tests.pieces(client_logits(job, server, someone, ClientState()), asked)
    found = workers([*(partial(predict_part, job, server, k, clients, tests) for k in own), *rest])
    predicted[tuned] = np.concatenate([which[:0], *found[: len(own)]])
    predicted[~tuned] = np.concatenate([which[:0], *found[len(own) :]])[place]
    return predicted


def predict_part(job: Job, server: Server, who: int, clients: Mapping[int, ClientState], tests: EvalSet) -> Indices:
    """A client's own model on its own part. Its state is read here, so that only a few are in memory at a time."""
    return tests.predict(client_logits(job, server, who, clients.get(who, ClientState())), tests.parts[who])


def client_logits(job: Job, server: Server, who: int, client: ClientState) -> Logits:
    return own_predict(job, client, on_device(job, personal_theta(job, server, who, client)))


def score_client(job: Job, server: Server, who: int, client: ClientState, tests: EvalSet) -> Score:
    return tests.score(predict_part(job, server, who, {who: client}, tests), tests.parts[who])


def personal_theta(job: Job, server: Server, who: int, client: ClientState) -> Params:
    """A client's own model.

    Where clients keep parameters of their own: those, with what the server would send now. Where they keep none: the
    parameters as this client last trained them, before averaging; the server's if it has not trained yet. A client
    that will have parameters of its own, but has none yet, is tested with the shared ones (own_predict).
    """
    down = server.params_for(who, job.scopes)
    return theta_of(job, {**down, **client.tuned}, client)


def on_device(job: Job, theta: Params) -> Params:
    return {name: job.model.put(value) for name, value in theta.items()}
