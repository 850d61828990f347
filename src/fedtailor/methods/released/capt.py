"""CAPT as released: raw prompts in L_ge and L_ca, clients one after the other on one model, four arms drawn a round.

Hou et al., CAPT: Class-Aware Prompt Tuning for Federated Long-Tailed Learning with Vision-Language Model, CVPR 2025.
Notation: as in capt.py; τ → tau, of the raw prompts alone.
Departures: K-means is seeded. As in that code, there is no row mask (its own comes after the step) and no aggregation
that the bandit did not ask for; a class's rows are averaged over clients with over 10% of their samples in it. P_g has
one row and P_c three, and the reward is measured on the test set: both are settings that come with capt-released.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from ...algorithms.bandit import BanditSettings
from ...algorithms.clustering import ClusterSettings
from ...base.errors import UserError
from ...core import Batch, Each, Me, Model, Params, Reply, Server
from ...core.losses import task_loss
from ..capt import CAPT, MASK
from .relay import CHAIN, CarriedMomentum


class FourClusters(ClusterSettings):
    by: Literal["counts"] = Field("counts", description="of their labels: what clients are told apart by")
    n_similar: int = Field(4, ge=1, description="similarity clusters (Fig. 6)")


class FourDraws(BanditSettings):
    draws: int = Field(4, ge=1, description="arms drawn a round, of which the last counts")


class ReleasedCAPT(CarriedMomentum, CAPT):
    chained = True

    against: Literal["text", "raw"] = Field("raw", description="L_ge, L_ca: raw prompts, or text features")
    tau: float = Field(0.1, gt=0, title="τ", description="temperature with against=raw")
    mask: Literal["sample", "batch", "none"] = Field("none", description=MASK)
    clusters: FourClusters = FourClusters()
    floor: float = Field(0.1, ge=-1, lt=1, description="share of a class above which a client's rows count; -1: FedAvg")
    schedule: FourDraws = FourDraws()
    last: bool = Field(False, description="aggregate after the last round, whatever the bandit says")

    def init(self, model: Model, rng: torch.Generator) -> Params:
        features, tokens = model.clip.shape.embed, model.clip.shape.text_width
        if self.against == "raw" and features != tokens:
            raise UserError(
                f"against=raw compares prompts, {tokens} wide, with image features, {features} wide: it needs a CLIP "
                "where they are equally wide; give method.against=text"
            )
        return super().init(model, rng)

    def round(self, server: Server, cohort: Sequence[int], each: Each) -> Server:
        after = super().round(server, cohort, each)
        if after.state["since"] <= after.round:
            return after
        # A global aggregation: the next client starts from its result.
        return replace(after, state={n: v for n, v in after.state.items() if not n.startswith(CHAIN)})

    def train(self, model: Model, me: Me, theta: Params) -> Reply:
        """Everything goes up and on to the next client, so that none has an F_k of its own."""
        inbox = {**me.inbox, "whole": torch.tensor(True)}
        return super().train(model, replace(me, memory={}, inbox=inbox), theta)

    def losses(
        self, model: Model, theta: Params, batch: Batch, z: Tensor, log_pi: Tensor, sets: Sequence[str]
    ) -> dict[str, Tensor]:
        if self.against == "text":
            return super().losses(model, theta, batch, z, log_pi, sets)
        bend, found = (
            model.bend(theta),
            super().losses(model, theta, batch, z, log_pi, [s for s in sets if s == "both"]),
        )
        if "shared" in sets and bend.shared is not None:
            found["shared"] = raw_general(z, bend.shared, self.tau)
        if "own" in sets and bend.own is not None:
            found["own"] = task_loss(raw_class_aware(z, bend.own, self.tau) + log_pi, batch)
        return found


def raw_general(z: Tensor, tokens: Tensor, tau: float) -> Tensor:
    """L_ge: image features (B, D) against general prompt vectors (M, D), over the whole batch."""
    s = z @ F.normalize(tokens, dim=-1).T / tau  # (B, M)
    return (s.logsumexp((0, 1)) - s).mean()


def raw_class_aware(z: Tensor, tokens: Tensor, tau: float) -> Tensor:
    """(B, C) scores of L_ca: against the mean of each class's normalised prompt vectors (C, M, D)."""
    return z @ F.normalize(tokens, dim=-1).mean(1).T / tau
