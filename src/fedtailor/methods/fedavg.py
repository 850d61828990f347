"""FedAvg: clients train on their own data, the server averages what they reach, weighted by their samples.

McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, AISTATS 2017.
Notation: w → theta, n_k → weight, C → fraction, E → local.epochs, B → local.batch, η → local.lr.
Departures: only a tuner's parameters are trained and sent; CLIP is frozen. The average is over the round's cohort.
`Method` is FedAvg already; with three tuners it is PromptFL, FedCLIP and CLIP-LoRA.
"""

from ..core import Method


class FedAvg(Method):
    by_picture = True
