"""FedCoPL as released: the visual prompts' momentum goes on from client to client.

Guo et al., Cooperative Pseudo Labeling for Unsupervised Federated Classification, ICCV 2025.
Departures: that code also carries the momentum of the text prompts, so that something local travels: carry=all.
"""

from ..fedcopl import FedCoPL
from .relay import CarriedMomentum


class ReleasedFedCoPL(CarriedMomentum, FedCoPL):
    pass
