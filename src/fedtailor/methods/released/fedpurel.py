"""FedPuReL as released: a personal pass in every round, λ = 0.99, momentum carried on in the shared passes.

Hou et al., Fine-Tuning Impairs the Balancedness of Foundation Models in Long-tailed Personalized Federated Learning.
Departures: none known. With adapters that code has plain distillation and the fused loss alone: align=distil lam=0.
"""

from collections.abc import Sequence

from pydantic import Field

from ...core import Each, Params, Scope, Server, resolve
from ..fedpurel import FedPuReL
from .relay import CarriedMomentum


class ReleasedFedPuReL(CarriedMomentum, FedPuReL):
    everyone_first = True  # so that each has a personal part

    lam: float = Field(0.99, ge=0, le=1, title="λ", description="weight of the personal branch alone, Alg. 1, l. 27")

    @property
    def closing(self) -> int:
        return 0

    def scopes(self, theta: Params) -> dict[str, Scope]:
        return resolve(self.share, theta, idle_too=True)  # a pass trains one branch alone

    def round(self, server: Server, cohort: Sequence[int], each: Each) -> Server:
        server = super().round(server, cohort, each)
        each(self.personalise, server, cohort)
        return server
