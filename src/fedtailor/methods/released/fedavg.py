"""FedAvg as PromptFL's code runs it: one optimiser for all clients, whose momentum goes on from client to client.

Guo et al., PromptFL: Let Federated Participants Cooperatively Learn Prompts Instead of Models, IEEE TMC 2023.
"""

from ..fedavg import FedAvg
from .relay import CarriedMomentum


class ReleasedFedAvg(CarriedMomentum, FedAvg):
    pass
