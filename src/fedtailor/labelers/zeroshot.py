"""Zero-shot labels: every picture is what CLIP takes it for.

Radford et al., Learning Transferable Visual Models From Natural Language Supervision, ICML 2021.
Notation: p_c(x) → probs.
Departures: none.
"""

from abc import abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from ..core import Each, Me, Model, Params, Reply, Server
from .base import INDEX, LABEL, Labeler


class SelfLabeler(Labeler):
    """Each client for itself, from nothing but the probabilities of its own pictures."""

    singly = ""  # nothing is sent

    def label(self, server: Server, clients: Sequence[int], each: Each) -> Server:
        each(self.pick, server, clients)
        return server

    def pick(self, model: Model, me: Me, theta: Params) -> Reply:
        return Reply({}, keep=self.labels(probabilities(model, me), me.round))

    @abstractmethod
    def labels(self, probs: Tensor, t: int) -> Params:
        """What a client keeps, from its (n, C) probabilities in round t."""


class ZeroShotLabels(SelfLabeler):
    by_picture = True

    def labels(self, probs: Tensor, t: int) -> Params:
        return {INDEX: torch.arange(len(probs)), LABEL: probs.argmax(1)}


def probabilities(model: Model, me: Me) -> Tensor:
    """(n, C) of a client's pictures, in their order: zero-shot CLIP's at first, its own model's in later rounds."""
    with torch.no_grad():
        logits = [model.teacher(view) if me.round == 0 else me.predict(view.x) for view in me.data.views()]
    return torch.cat([torch.empty(0, model.classes), *(each.float().cpu() for each in logits)]).softmax(1)
