"""One step of plain SGD on a few pictures, as it leaves a client: what tells most of a single picture.

A server that wants to know much asks for it, as settings are its own to choose: one epoch, one batch, no momentum, no
weight decay. Everything else is the run's own: method, tuner, parameters, privacy, compression.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ..base.rng import generator, numpy_generator
from ..core.optim import LocalTraining
from ..core.types import Params
from ..data.dataset import Indices
from .base import CannotAttack
from .case import Case, update
from .replay import Replay, thawed

KNOWN = 0.99  # cosine from which on an attacker knows how an update came about


@dataclass(frozen=True)
class OneStep:
    client: int
    pictures: Indices  # that it trained on: their places in the training set
    gradient: Params  # what left, as a gradient, by name
    replay: Replay

    @cached_property
    def seen(self) -> Tensor:
        return self.replay.flat(self.gradient)

    @cached_property
    def agreement(self) -> float:
        """The cosine of what left and what the attacker would compute from the true pictures: where it is not 1, the
        attacker does not know how this client's update came about, and that an attack fails tells little."""
        x, plain = self.replay.batch.x.float(), self.replay.batch.plain
        return float(F.cosine_similarity(self.replay(x, plain).detach(), self.seen, dim=0))


def one_step(case: Case, k: int, pictures: int) -> OneStep:
    """Of a client's step on so many pictures, each of another class; fewer, if it has not so many classes."""
    data, method = case.trained_on(k), case.job.method
    if not len(data):
        raise CannotAttack(f"client {case.name_of(k)} has no labelled pictures to train on")
    chosen = of_each_class(data.labels.numpy(), pictures, numpy_generator(case.experiment.run.seed, "audit", k))
    few = data.few(torch.from_numpy(chosen))
    local = LocalTraining(epochs=1, batch=len(chosen), lr=method.local.lr, momentum=0, weight_decay=0)
    job = replace(case.job, method=method.model_copy(update={"local": local}), labeler=None, attack=None)
    asked = case.asked_again({k: few}, job)
    step = asked.trained(k)
    if step is None:
        raise CannotAttack("nothing that clients train leaves them")
    path = "round", step.task.round, "client", k, step.task.pass_name  # as in client_step
    batch = next(iter(few.batches(local.batch, local.drop_last, generator(job.seed, *path))))
    names = [name for name, changed in update(step).items() if changed.any()]
    start = {name: job.model.put(value) for name, value in {**job.start, **step.task.params}.items()}
    model = thawed(job.model)
    gradient = {name: job.model.put(-change / local.lr) for name, change in update(step).items() if name in names}
    return OneStep(
        k, few.places[batch.index.numpy()], gradient, Replay(job.method, model, start, step.task, names, batch)
    )


def of_each_class(labels: Indices, most: int, rng: np.random.Generator) -> Indices:
    """Places of pictures, one of each of some classes."""
    order = rng.permutation(len(labels))
    _, first = np.unique(labels[order], return_index=True)
    return np.asarray(order[np.sort(first)][:most])


def weak_replay(agreement: float) -> list[str]:
    """What has to be said where the attacker cannot compute the update even from the true pictures."""
    if agreement > KNOWN:
        return []
    return [
        f"From the true pictures the attacker's own update has a cosine of {agreement:.3f} with what left: it was "
        "changed on its way (noise, compression), or made in a way that this attacker does not know. Where it is the "
        "latter, that the attack fails tells little."
    ]
