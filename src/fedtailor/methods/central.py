"""Central: one model trained on everyone's data in one place, which is what federated methods hope to come near.

Departures: none. A round is local.epochs passes over all the data, where a federated round sees only its cohort's.
It moves the pictures themselves, which is not counted in its bytes.
"""

from ..core import OWN, Method


class Central(Method):
    @property
    def mixing(self) -> str:
        return "has everyone's pictures in one place, where none is counted"

    @classmethod
    def everyone(cls, clients: int) -> list[int]:
        return [OWN]  # the server, which has everyone's data
