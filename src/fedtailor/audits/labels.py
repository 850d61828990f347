"""How many pictures of each class a client has, from its update, and from what it counts.

After Wainakh et al., User-Level Label Leakage from Gradients in Federated Learning, PoPETs 2022: pictures of a class
push the parameters in a direction of that class, which whoever has some pictures of each class can compute. Notation:
D_aux → public, ∇W → change. Departures: shares of classes are found together, by least squares with none below 0,
instead of one picture after the other; a bias of each class, where there is one, is looked at alone, as no picture's
content is in its gradient.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from ..base.progress import ProgressFn
from ..client.step import StepTrace
from ..core.optim import LocalTraining
from ..core.types import Batch, Params
from ..privacy.pictures import steps_of
from .base import Audit, CannotAttack, Finding, Plan, Row, rounded, seconds_of
from .case import Case, update

Shares = NDArray[np.float64]  # (C,) of a client's pictures, by class; 1 in all
FIRM = 1e3  # how much more than anything else it counts that shares come to 1


class Labels(Audit):
    idea: ClassVar[str] = "how frequent each class is at a client, from its update and its counts"

    public: int = Field(10, ge=1, description="pictures of each class that the attacker has: test pictures")

    def plan(self, case: Case) -> Plan:
        labels, local = case.experiment.tests.labels, case.job.method.local
        if not len(labels):
            raise CannotAttack("the attacker needs public pictures of each class, and there are no test pictures here")
        if not case.sends:
            raise CannotAttack("nothing that clients train leaves them")
        public = Public(case, self.public)
        once = seconds_of(lambda: public.column(int(labels[0]), case.server.params, {}))
        batches = sum(steps_of(len(case.data_of(k)), local.batch, False) for k in case.who) * local.epochs
        took = once * (batches + public.classes * (len(case.who) if case.server.clusters else 1))
        return Plan(
            f"ask {len(case.who)} client(s) for one more round, and guess their classes from what they send", took
        )

    def __call__(self, case: Case, progress: ProgressFn) -> Finding:
        progress("asking clients for a round", 0, 1)
        asked, public = case.another_round, Public(case, self.public)
        progress("asking clients for a round", 1, 1)
        everyone = shares(np.bincount(case.labels, minlength=public.classes))
        tries = list[Row]()
        for done, k in enumerate(case.who):
            progress("guessing classes", done, len(case.who))
            held = case.experiment.federation.shares[k].train
            truth = shares(np.bincount(case.labels[held], minlength=public.classes))
            step = asked.trained(k)
            guesses = {"from the update": guess(public, step, case)} if step else {}
            guesses |= {f"from {name}": shares(v.numpy()) for name, v in counted(case, asked.steps[k]).items()}
            guesses |= {"as in all pictures": everyone, "all classes alike": np.full_like(truth, 1 / len(truth))}
            tries += [judged(case.name_of(k), what, found, truth) for what, found in guesses.items()]
        progress("guessing classes", len(case.who), len(case.who))
        return Finding(summary(tries), [], [rounded(row) for row in tries])


@dataclass(frozen=True, eq=False)
class Public:
    """The attacker's own pictures, and where those of a class push the parameters."""

    case: Case
    each: int

    @property
    def classes(self) -> int:
        return self.case.job.model.classes

    def batch(self, c: int) -> Batch | None:
        tests, put = self.case.experiment.tests, self.case.job.model.put
        mine = (tests.labels == c).nonzero()[0][: self.each]
        if not len(mine):
            return None
        plain = None if tests.plain is None else put(tests.plain.fetch(mine))
        y = torch.full((len(mine),), c)
        return Batch(put(tests.features.fetch(mine)), put(y), torch.arange(len(mine)), plain=plain)

    def column(self, c: int, down: Params, inbox: Params) -> Params:
        """The gradient on pictures of a class, at the parameters that were sent down."""
        job, batch = self.case.job, self.batch(c)
        start = {name: job.model.put(value) for name, value in {**job.start, **down}.items()}
        theta = {name: value.detach().clone().requires_grad_(name in down) for name, value in start.items()}
        return {} if batch is None else job.method.gradient(job.model, {**start, **inbox})(theta, batch)

    def columns(self, step: StepTrace) -> list[Params]:
        """Of every class. Clients that were sent the same have the same."""
        sent = tuple(id(value) for value in (*step.task.params.values(), *step.task.inbox.values()))
        if sent not in self.known:
            self.known[sent] = [self.column(c, step.task.params, step.task.inbox) for c in range(self.classes)]
        return self.known[sent]

    @cached_property
    def known(self) -> dict[tuple[int, ...], list[Params]]:
        """By what was sent down."""
        return {}


def guess(public: Public, step: StepTrace, case: Case) -> Shares:
    """Σ_c share_c × where class c pushes ≈ where the update went."""
    columns, change, local = public.columns(step), update(step), case.job.method.local
    names = [name for name, value in change.items() if value.any()]
    of_classes = [name for name in names if name.endswith(".bias") and change[name].shape == (public.classes,)]
    names = of_classes or names
    length = None if case.job.privacy else way(local, int(step.reply.weight))
    pull = {name: change[name].double() for name in names}
    if length is not None:
        pull = {n: v + length * local.weight_decay * step.task.params[n].double() for n, v in pull.items()}
    return nonnegative(matrix(columns, pull), flat(pull), length)


def matrix(columns: list[Params], like: Params) -> NDArray[np.float64]:
    """(P, C), against the gradients."""
    zeros = {name: torch.zeros_like(value) for name, value in like.items()}
    rows = [flat({name: -found.get(name, zero).detach().cpu() for name, zero in zeros.items()}) for found in columns]
    return np.stack(rows, axis=1)


def flat(params: Mapping[str, Tensor]) -> NDArray[np.float64]:
    return torch.cat([value.flatten().double() for value in params.values()]).numpy()


def way(local: LocalTraining, pictures: int) -> float | None:
    """How far plain SGD gets in a pass with a gradient that stays the same, as a multiple of it; None where the way
    depends on more."""
    if local.optimiser != "sgd" or local.clip or not pictures:
        return None
    steps, speed, length = steps_of(pictures, local.batch, local.drop_last), 0.0, 0.0
    for epoch in range(local.epochs):
        for _ in range(steps):
            speed = local.momentum * speed + 1
            length += local.rate(0, epoch) * speed
    return length


def nonnegative(columns: NDArray[np.float64], pull: NDArray[np.float64], length: float | None) -> Shares:
    """The shares of least squares. They come to 1, by the length of the way where that is known."""
    from scipy.optimize import nnls  # here: it takes a while to load

    if length is not None:
        firm = FIRM * float(np.abs(columns).max() or 1.0) * length
        columns = np.vstack([columns * length, np.full(columns.shape[1], firm)])
        pull = np.append(pull, firm)
    triangle = np.asarray(np.linalg.qr(np.column_stack([columns, pull]), mode="r"))  # the same squares, in C + 1 rows
    found, _ = nnls(triangle[:, :-1], triangle[:, -1], maxiter=100 * columns.shape[1])
    return shares(found)


def shares(counts: NDArray[np.generic]) -> Shares:
    """All alike, where there is nothing to go by."""
    values = counts.astype(np.float64)
    total = values.sum()
    return values / total if total > 0 and math.isfinite(total) else np.full(len(values), 1 / len(values))


def counted(case: Case, steps: Sequence[StepTrace]) -> dict[str, Tensor]:
    """What a client counts by class, by name."""
    found: dict[str, Tensor] = {}
    for step in steps:
        forms = case.job.statistics(step.task.pass_name)
        counts = [n for n in step.reply.stats if forms[n].counts and forms[n].like.shape == (case.job.model.classes,)]
        found |= {name: step.reply.stats[name] for name in counts if name not in found}
    return found


def judged(client: str, what: str, found: Shares, truth: Shares) -> Row:
    return {
        "client": client,
        "guess": what,
        "total variation": float(np.abs(found - truth).sum() / 2),
        "top class": bool(truth[found.argmax()] == truth.max()),
        "shares": [round(value, 4) for value in found.tolist()],
        "truth": [round(value, 4) for value in truth.tolist()],
    }


def summary(tries: list[Row]) -> list[Row]:
    made = []
    for what in dict.fromkeys(row["guess"] for row in tries):
        mine = [row for row in tries if row["guess"] == what]
        off, right = fmean(row["total variation"] for row in mine), sum(row["top class"] for row in mine)
        made.append({"guess": what, "off by": off, "most frequent class right": f"{right} of {len(mine)}"})
    return made
