"""KgCoOp: a learned context whose class sentences stay near the hand-written ones; here with FedAvg.

Yao et al., Visual-Language Prompt Tuning with Knowledge-guided Context Optimization, CVPR 2023.
Notation: w_i → text features of the learned sentence, w_i^clip → of the hand-written one, λ → lam.
Departures: the knowledge term is 1 − cos, as released; the paper's squared distance of unit vectors is twice that.
Federated by averaging, as CAPT compares it.
"""

from pydantic import Field
from torch import Tensor

from ..core import Batch, Method, Model, Params


class KgCoOp(Method):
    neutral = {"lam": 0.0}
    by_picture = True

    lam: float = Field(8.0, ge=0, allow_inf_nan=False, title="λ", description="weight of the knowledge term, Eq. 5")

    def loss(self, model: Model, theta: Params, batch: Batch, start: Params) -> Tensor:
        task = super().loss(model, theta, batch, start)
        if self.lam == 0:
            return task
        return task + self.lam * distance(model.text(theta, batch.rng), model.zero_shot)  # Eq. 5


def distance(w: Tensor, w_clip: Tensor) -> Tensor:
    """One minus the mean cosine of the classes' learned and hand-written sentences, both normalised."""
    return 1 - (w * w_clip).sum(-1).mean()  # Eq. 4
