"""Tests of the server's model on the whole test set, and of every client's model on its own part of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..client.features import FeatureStore
from ..client.job import ClientState, Job, theta_of
from ..client.step import own_predict
from ..core.types import Params, Server
from ..data.dataset import Indices
from ..data.groups import Groups
from .metrics import Score, mean_score, score

CHUNK_BYTES = 64 << 20  # of tower input at once
Logits = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class EvalSet:
    """The test set and each client's part of it. No pass can reach it."""

    features: FeatureStore
    labels: Indices
    parts: tuple[Indices, ...]
    groups: Groups

    @torch.no_grad()
    def predict(self, logits: Logits, indices: Indices) -> Indices:
        if len(indices) == 0:
            return indices
        step = max(1, CHUNK_BYTES // (4 * self.features.fetch(indices[:1]).numel()))
        chunks = (self.features.fetch(indices[i : i + step]) for i in range(0, len(indices), step))
        return np.concatenate([logits(x).argmax(dim=1).cpu().numpy() for x in chunks])

    def score(self, predicted: Indices, indices: Indices) -> Score:
        return score(self.labels[indices], predicted, self.groups)

    @property
    def everything(self) -> Indices:
        return np.arange(len(self.labels))

    def of_client(self, k: int) -> EvalSet:
        """One client's part as a test set of its own."""
        mine = self.parts[k]
        return EvalSet(FeatureSubset(self.features, mine), self.labels[mine], (np.arange(len(mine)),), self.groups)


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


def score_zero_shot(job: Job, tests: EvalSet) -> tuple[Score, Score]:
    """CLIP's score on the whole set, and the mean of its scores on the clients' parts."""
    predicted = tests.predict(job.model.zero_shot_logits, tests.everything)
    parts = [tests.score(predicted[part], part) for part in tests.parts]
    return tests.score(predicted, tests.everything), mean_score(parts)


def score_shared(job: Job, server: Server, tests: EvalSet) -> Score:
    """The server's model on the whole test set; no numbers where clients share nothing."""
    which = tests.everything
    if job.method.trains and not server.params:
        return tests.score(which[:0], which[:0])
    theta = on_device(job, theta_of(job, server.params, ClientState()))
    model = job.model.remembering()
    return tests.score(tests.predict(lambda x: job.method.predict_shared(model, theta, x), which), which)


def score_clients(job: Job, server: Server, clients: Mapping[int, ClientState], tests: EvalSet) -> list[Score]:
    """Every client's own model on its own part."""
    return [score_client(job, server, k, clients.get(k, ClientState()), tests) for k in range(len(tests.parts))]


def score_client(job: Job, server: Server, who: int, client: ClientState, tests: EvalSet) -> Score:
    theta = on_device(job, personal_theta(job, server, who, client))
    return tests.score(tests.predict(own_predict(job, client, theta), tests.parts[who]), tests.parts[who])


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
