"""FedTPG: clients learn one network together that writes the context from the class names.

Qiu et al., Federated Text-driven Prompt Generation for Vision-Language Models, ICLR 2024.
Notation: T → model.names, Q → generator.queries, f_θ → generate (tuners/prompt_generator.py), m → tuner.length.
Departures, all of them in docs/methods/fedtpg.md: every client tells all C classes apart and its generator, in fp32,
reads all their names; in the paper each has its own few. T is of bare class names, as released.
"""

from ..core import Method


class FedTPG(Method):
    by_picture = True

    @property
    def evenly(self) -> bool:
        return True  # θ = 1/|S| Σ θ_k over the cohort S
