"""FedSA-LoRA: of every low-rank delta B A, the A matrices are shared and the B matrices stay.

Guo et al., Selective Aggregation for Low-Rank Adaptation in Federated Learning, ICLR 2025.
Notation: A_i → *.A, B_i → *.B.
Departures: written for language models; here on CLIP's attention matrices. The method defines no global model: with B
at its first value, zero, what is shared alone is CLIP as it is. In a simulation the shared A are tested with the mean
of the clients' B, which no one but the test sees (lent).
"""

from ..core import GLOBAL, LOCAL, Method


class FedSALora(Method):
    share = {"*.A": GLOBAL, "*.B": LOCAL}
    everyone_first = True
    by_picture = True
    lent = "global: with the average of the clients' own B, for evaluation only (none where clients are remote)"
