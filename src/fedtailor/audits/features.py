"""Pictures' features, from the update of one step: where a tuner works on features, an update is made of nothing else.

Closed form where a trained layer takes features in: its gradient is Σ δ ⊗ z and that of its bias Σ δ, so one picture's
feature is the quotient (Phong et al., Privacy-Preserving Deep Learning: Revisited and Enhanced, ATIS 2017, Section 3).
Of a head, a class's own row is such a quotient too, nearly, if one picture is of that class. Elsewhere by search: the
features whose gradient is nearest to the one that left, by L-BFGS, as Zhu et al., Deep Leakage from Gradients, NeurIPS
2019, from the features of the classes' sentences on.
Notation: z → features, ∇W' → seen.
"""

from __future__ import annotations

from statistics import fmean
from typing import ClassVar

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from ..base.progress import ProgressFn
from .base import Audit, CannotAttack, Finding, Plan, Row, rounded, seconds_of
from .case import Case
from .one_step import OneStep, one_step, weak_replay

FELT = 1e-3  # of the strongest, and a direction of features still counts as felt in the update
NUDGE = 1e-2  # of a feature's length


class Features(Audit):
    idea: ClassVar[str] = "CLIP's features of pictures, from the update of one step"

    steps: int = Field(200, ge=1, le=1_000_000, description="of the search, where there is no closed form")
    pictures: int = Field(1, ge=1, le=64, description="in the client's step, each of another class")
    tries: int = Field(4, ge=1, description="clients, a step of each")

    def plan(self, case: Case) -> Plan:
        if case.job.model.stage != "features":
            raise CannotAttack(
                "this tuner works inside the image tower, so an update is not made of features; "
                "the attack on pictures tells how like the features come out"
            )
        who = case.who[: self.tries]
        step = one_step(case, who[0], self.pictures)
        once = seconds_of(lambda: step.replay(start(case, step).requires_grad_(True)))
        took = once * (3 * self.steps * len(who) + 2 * directions(case, step))
        return Plan(f"look for the features in one step's update, at {len(who)} client(s)", took)

    def __call__(self, case: Case, progress: ProgressFn) -> Finding:
        tries, who, felt = list[Row](), case.who[: self.tries], ""
        for done, k in enumerate(who):
            progress("looking for features", done, len(who))
            step = one_step(case, k, self.pictures)
            found = searched(step, start(case, step), self.steps)
            tries += judged(case, step, found)
            if not done:
                felt = (
                    f"The update shows changes of the features in {rank(step)} of {directions(case, step)} directions."
                )
        progress("looking for features", len(who), len(who))
        table = [mean("recovered", "cosine", tries), mean("another picture of its class", "other cosine", tries)]
        table.insert(1, mean("the class's sentence", "sentence cosine", tries))
        told = [felt, *weak_replay(fmean(row["agreement"] for row in tries))]
        return Finding(table, told, [rounded(row) for row in tries])


def directions(case: Case, step: OneStep) -> int:
    return len(step.pictures) * case.job.model.clip.shape.embed


def start(case: Case, step: OneStep) -> Tensor:
    """(B, D) in closed form, where there is one; else the classes' sentences. Of the length that a grey picture has."""
    model, y, size = case.job.model, step.replay.batch.y, case.experiment.transform.size
    with torch.no_grad():
        length = float(model.clip.vision(model.put(torch.zeros(1, 3, size, size))).norm())
    rows = closed(step.gradient, y)
    return F.normalize(model.zero_shot[y] if rows is None else rows, dim=-1) * length


def closed(gradient: dict[str, Tensor], y: Tensor) -> Tensor | None:
    """Quotients of the gradients of a layer that features go into and of its bias."""
    weight, bias = gradient.get("head.weight"), gradient.get("head.bias")
    if weight is not None and bias is not None:
        return weight[y] / bias[y, None]
    weight, bias = gradient.get("adapter.in.weight"), gradient.get("adapter.in.bias")
    if len(y) == 1 and weight is not None and bias is not None:
        return (bias @ weight / bias.square().sum())[None]
    return None


def searched(step: OneStep, begin: Tensor, steps: int) -> Tensor:
    """(B, D) by L-BFGS: the least squared difference of gradients, as a share of what was seen."""
    guess = begin.clone().requires_grad_(True)
    search = torch.optim.LBFGS([guess], max_iter=steps, line_search_fn="strong_wolfe", tolerance_change=0.0)

    def off() -> Tensor:
        search.zero_grad()
        lost = (step.replay(guess, guess) - step.seen).square().sum() / step.seen.square().sum()
        lost.backward()
        return lost

    search.step(off)
    return guess.detach()


def rank(step: OneStep) -> int:
    """In how many directions features can be moved before the update shows it: singular values of its derivative."""
    x = step.replay.batch.x.float()
    eps = NUDGE * x.norm(dim=-1).mean()
    columns = []
    for i in range(x.numel()):
        move = torch.zeros_like(x)
        move.view(-1)[i] = eps
        ahead, behind = (step.replay(at, at).detach() for at in (x + move, x - move))
        columns.append((ahead - behind) / (2 * eps))
    values = torch.linalg.svdvals(torch.stack(columns, dim=1))
    return int((values > FELT * values[0]).sum())


def judged(case: Case, step: OneStep, found: Tensor) -> list[Row]:
    rows = []
    truth, sentences = F.normalize(step.replay.batch.x.float(), dim=-1), case.job.model.zero_shot[step.replay.batch.y]
    for i, place in enumerate(step.pictures.tolist()):
        others = case.others(place)
        pool = case.features(case.seen(others)) if len(others) else None
        rows.append(
            {
                "client": case.name_of(step.client),
                "picture": place,
                "class": case.experiment.federation.class_names[case.labels[place]],
                "cosine": float(F.cosine_similarity(found[i], truth[i], dim=0)),
                "sentence cosine": float(sentences[i] @ truth[i]),
                "other cosine": None if pool is None else float((pool @ truth[i]).mean()),
                "agreement": step.agreement,
            }
        )
    return rows


def mean(what: str, key: str, tries: list[Row]) -> Row:
    values = [row[key] for row in tries if row[key] is not None]
    return {"": what, "cosine": fmean(values) if values else None}
