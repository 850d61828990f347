"""FedAdam: the changes of rounds are steps of Adam.

Reddi et al., Adaptive Federated Optimization, ICLR 2021.
"""

from pydantic import Field
from torch import Tensor

from ..core import Params
from .base import ServerOptimizer


class FedAdam(ServerOptimizer):
    eta: float = Field(0.01, gt=0, allow_inf_nan=False, title="η", description="the server's learning rate")
    beta1: float = Field(0.9, ge=0, lt=1, title="β₁")
    beta2: float = Field(0.99, ge=0, lt=1, title="β₂")
    tau: float = Field(1e-3, gt=0, allow_inf_nan=False, title="τ", description="added to √v: adaptivity ends below it")

    def beyond(self, change: Tensor, name: str, state: Params) -> Tensor:
        m, v = state.get(f"server.m.{name}", 0.0), state.get(f"server.v.{name}", self.tau**2)  # v_{−1} ≥ τ²
        m = self.beta1 * m + (1 - self.beta1) * change  # Alg. 2, l. 12
        v = self.beta2 * v + (1 - self.beta2) * change.square()  # Alg. 2, FedAdam
        state[f"server.m.{name}"], state[f"server.v.{name}"] = m, v
        return self.eta * m / (v.sqrt() + self.tau) - change  # Alg. 2, l. 14
