"""FedProx: FedAvg with a pull back to where the client started from.

Li et al., Federated Optimization in Heterogeneous Networks, MLSys 2020. With text prompts: PromptProx.
Notation: w → theta, w^t → start, μ → mu.
Departures: none. (Several public codes compute the pull from detached tensors, so that it does nothing.)
"""

from pydantic import Field
from torch import Tensor

from ..core import Batch, Method, Model, Params


class FedProx(Method):
    neutral = {"mu": 0.0}
    by_picture = True

    mu: float = Field(0.5, ge=0, allow_inf_nan=False, title="μ", description="weight of the pull, FedProx Eq. 2")

    def loss(self, model: Model, theta: Params, batch: Batch, start: Params) -> Tensor:
        task = super().loss(model, theta, batch, start)
        away = sum((value - start[name]).square().sum() for name, value in theta.items())
        return task + self.mu / 2 * away  # FedProx Eq. 2
