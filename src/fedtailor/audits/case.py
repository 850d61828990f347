"""What an audit is given: a run as it was left, whose clients can be asked once more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

from ..base.rng import numpy_generator
from ..client.data import ClientData
from ..client.job import ClientState, Job
from ..client.step import StepTrace, labelled_data
from ..core.types import Server
from ..data.dataset import Indices
from ..simulation.build import Experiment
from ..simulation.local import LocalEngine

POOL = 50  # other pictures of a class, to compare with


@dataclass(frozen=True)
class Case:
    experiment: Experiment
    server: Server
    clients: Mapping[int, ClientState]
    who: tuple[int, ...]  # the clients that are attacked

    @property
    def job(self) -> Job:
        return self.experiment.job

    @property
    def sends(self) -> bool:
        """Whether anything that is trained leaves a client."""
        return bool(self.server.params)

    @cached_property
    def labels(self) -> Indices:
        """The true ones of the training pictures, which guesses are held against."""
        found = self.experiment.federation.dataset.train.labels
        assert found is not None  # seen to when the run was opened
        return found

    def name_of(self, k: int) -> str:
        return self.experiment.federation.name_of(k)

    def data_of(self, k: int) -> ClientData:
        return self.experiment.client_data[k]

    def asked_again(self, data: Mapping[int, ClientData], job: Job | None = None) -> Asked:
        """One more round with these clients alone, with this data, by the steps that they always do: what leaves them
        here is what leaves them in a run."""
        job = job or self.job
        engine = LocalEngine(job, {**self.experiment.client_data, **data}, self.clients)
        server = self.labelled(engine)
        engine.trace = []
        job.method.round(server, sorted(data), engine)
        return Asked({k: [step for step in engine.trace if step.client == k] for k in data})

    @cached_property
    def another_round(self) -> Asked:
        """Of all who are attacked, with all that they have."""
        return self.asked_again({k: self.data_of(k) for k in self.who})

    def labelled(self, engine: LocalEngine) -> Server:
        """The server before a round that does not count as one more, with labels for those who have none."""
        server = replace(self.server, round=min(self.server.round, self.experiment.run.rounds - 1))
        if engine.job.labeler is None:
            return server
        everyone = engine.job.method.everyone(self.experiment.run.clients)
        return replace(engine.job.labeler.label(server, everyone, engine), new_labels=True)

    def trained_on(self, k: int) -> ClientData:
        """A client's pictures with the labels that it trains on, its own or a labeler's."""
        engine = LocalEngine(self.job, self.experiment.client_data, self.clients)
        self.labelled(engine)
        found = labelled_data(self.job, k, engine.clients[k], self.data_of(k))
        assert isinstance(found, ClientData)
        return found

    def seen(self, pictures: Indices) -> Tensor:
        """(B, 3, S, S) training pictures, whoever has them, as they go into CLIP; without augmentation."""
        images, transform = self.experiment.federation.dataset.train.images, self.experiment.transform
        return self.job.model.put(torch.stack([transform(images.read(int(i))) for i in pictures]))

    @torch.no_grad()
    def features(self, seen: Tensor) -> Tensor:
        """(B, D) by CLIP as it is, normalised."""
        with self.job.model.cast():
            return F.normalize(self.job.model.clip.vision(seen).float(), dim=-1)

    def others(self, picture: int) -> Indices:
        """Some of the other training pictures of the same class, whoever has them."""
        same = (self.labels == self.labels[picture]).nonzero()[0]
        rng = numpy_generator(self.experiment.run.seed, "audit", "others", picture)
        return rng.permutation(same[same != picture])[:POOL]


@dataclass(frozen=True)
class Asked:
    steps: Mapping[int, Sequence[StepTrace]]  # of the method's passes, by client

    def trained(self, k: int) -> StepTrace | None:
        """The first step in which parameters left a client otherwise than they had come."""
        return next(
            (step for step in self.steps.get(k, ()) if any(value.any() for value in update(step).values())), None
        )


def update(step: StepTrace) -> dict[str, Tensor]:
    """By how much each parameter left otherwise than it had come."""
    return {name: value - step.task.params[name] for name, value in step.reply.params.items()}
