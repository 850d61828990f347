"""Whether a picture was among those trained on, from how well a model knows it.

Yeom et al., Privacy Risk in Machine Learning, CSF 2018: a small loss speaks for a member. Watson et al., On the
Importance of Difficulty Calibration in Membership Inference Attacks, ICLR 2022: what counts is how much smaller it is
than the loss of a model that never saw the picture, here CLIP as it is.
Notation: ℓ(θ, z) → losses, s(z) → scores. Who is found where few are accused: Carlini et al., Membership Inference
Attacks From First Principles, S&P 2022. Of each class a client has as many members as others are asked about, so that
what is measured is not how frequent a class is. Departures: none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ..base.progress import ProgressFn
from ..base.rng import numpy_generator
from ..client.job import ClientState, theta_of
from ..core.types import View
from ..data.dataset import Indices
from ..evaluation.testing import client_logits, on_device, shared_logits
from .base import Audit, CannotAttack, Finding, Plan, Row, seconds_of
from .case import Asked, Case
from .drawing import curves
from .scores import ACCUSED, Curve, Scores, curve, measured

Logits = Callable[[Tensor], Tensor]
CHUNK = 256  # pictures
OWN, SENT, SHARED = "a client's own", "sent in a round", "shared"
BY_LOSS, BY_BOTH = "loss", "less CLIP's"
ENOUGH = round(1 / ACCUSED)  # others, for the share of members found to mean anything


class Membership(Audit):
    idea: ClassVar[str] = "which pictures a model was trained on, from how well it knows them"

    def plan(self, case: Case) -> Plan:
        asked = [pictures for k in case.who if len((pictures := Asking(case, k)).members)]
        if not asked:
            raise CannotAttack(
                "no client has test pictures of a class that it trains on, so nobody to tell members from"
            )
        count, model = sum(2 * len(pictures.members) for pictures in asked), case.job.model.zero_shot_logits
        first = asked[0]
        once = seconds_of(lambda: first.losses(first.members_seen, model)) / len(first.members)
        return Plan(f"ask models of {len(asked)} client(s) about {count} pictures", 5 * once * count)

    def __call__(self, case: Case, progress: ProgressFn) -> Finding:
        found: dict[tuple[str, str], list[tuple[Scores, Scores]]] = {}
        asked = case.another_round if case.sends else Asked({})
        for done, k in enumerate(case.who):
            progress("asking models", done, len(case.who))
            pictures = Asking(case, k)
            if not len(pictures.members):
                continue
            reference = [pictures.losses(seen, None) for seen in (pictures.members_seen, pictures.others_seen)]
            for whose, model in models(case, asked, k).items():
                members, others = (
                    pictures.losses(seen, model) for seen in (pictures.members_seen, pictures.others_seen)
                )
                found.setdefault((whose, BY_LOSS), []).append((-members, -others))
                found.setdefault((whose, BY_BOTH), []).append((reference[0] - members, reference[1] - others))
        progress("asking models", len(case.who), len(case.who))
        tries, lines = list[Row](), dict[str, Curve]()
        for (whose, by), parts in found.items():
            members, others = (np.concatenate(side) for side in zip(*parts, strict=True))
            tries.append(row(whose, by, members, others, numpy_generator(case.experiment.run.seed, "audit", whose, by)))
            if by == BY_BOTH:
                lines[whose] = curve(members, others)
        told = [
            "An AUC of 0.5 is guessing, 1 is certainty; found are those whom a rule names that accuses 1 in 100 others."
        ]
        return Finding([shown(each) for each in tries], told, tries, {"membership.png": curves(lines)})


@dataclass(frozen=True, eq=False)
class Asking:
    """The pictures of one client that models are asked about."""

    case: Case
    client: int

    @property
    def held(self) -> Indices:
        return self.case.experiment.federation.shares[self.client].train

    @property
    def tests(self) -> Indices:
        return self.case.experiment.tests.parts[self.client]

    @cached_property
    def chosen(self) -> tuple[Indices, Indices]:
        """Places among the client's training pictures, and of test pictures: as many of each class."""
        mine, others = self.case.labels[self.held], self.case.experiment.tests.labels[self.tests]
        rng = numpy_generator(self.case.experiment.run.seed, "audit", "asked", self.client)
        some, rest = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        for c in np.intersect1d(mine, others):
            one, two = (rng.permutation((labels == c).nonzero()[0]) for labels in (mine, others))
            n = min(len(one), len(two))
            some, rest = [*some, one[:n]], [*rest, self.tests[two[:n]]]
        return np.concatenate(some), np.concatenate(rest)

    @property
    def members(self) -> Indices:
        return self.chosen[0]

    @property
    def members_seen(self) -> list[tuple[View, Tensor]]:
        index = torch.from_numpy(self.members)
        y = torch.from_numpy(self.case.labels[self.held[self.members]])
        return list(zip(self.case.data_of(self.client).few(index).views(CHUNK), y.split(CHUNK), strict=True))

    @property
    def others_seen(self) -> list[tuple[View, Tensor]]:
        tests, seen = self.case.experiment.tests, list[tuple[View, Tensor]]()
        for some in np.split(self.chosen[1], range(CHUNK, len(self.chosen[1]), CHUNK)):
            plain = None if tests.plain is None else tests.plain.fetch(some)
            seen.append(
                (View(tests.features.fetch(some), torch.from_numpy(some), plain), torch.from_numpy(tests.labels[some]))
            )
        return seen

    @torch.no_grad()
    def losses(self, seen: Sequence[tuple[View, Tensor]], model: Logits | None) -> Scores:
        """Of each picture, by a model, or by CLIP as it is."""
        job = self.case.job
        found = [
            F.cross_entropy(
                job.model.teacher(view) if model is None else model(view.x), job.model.put(y), reduction="none"
            )
            for view, y in seen
        ]
        return torch.cat(found).double().cpu().numpy()


def models(case: Case, asked: Asked, k: int) -> dict[str, Logits]:
    """What there is that client's pictures may have been trained into."""
    job, found = case.job, dict[str, Logits]()
    if k in case.clients:
        found[OWN] = client_logits(job, case.server, k, case.clients[k])
    if (step := asked.trained(k)) is not None:
        theta = on_device(job, theta_of(job, {**step.task.params, **step.reply.params}, ClientState()))
        found[SENT] = lambda x: job.method.predict_shared(job.model, theta, x)
    if (shared := shared_logits(job, case.server)) is not None:
        found[SHARED] = shared
    return found


def row(whose: str, by: str, members: Scores, others: Scores, rng: np.random.Generator) -> Row:
    area, found = measured(members, others, rng)
    few = len(others) < ENOUGH
    told = {"model": whose, "by": by, "members": len(members), "others": len(others)}
    told |= {"auc": area.value, "auc interval": [area.low, area.high]}
    told |= {"found": None if few else found.value, "found interval": None if few else [found.low, found.high]}
    return told


def shown(row: Row) -> Row:
    def with_interval(key: str, form: str) -> str | None:
        if row[key] is None:
            return None
        low, high = row[f"{key} interval"]
        return f"{row[key]:{form}} ({low:{form}} to {high:{form}})"

    told = {"model": row["model"], "by": row["by"], "pictures": row["members"] + row["others"]}
    return {**told, "AUC": with_interval("auc", ".3f"), "found": with_interval("found", ".1%")}
