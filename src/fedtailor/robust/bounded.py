"""Bounded: no update is longer than a multiple of the round's median one.

Norm bounding, as in Sun et al., Can You Really Backdoor Federated Learning?, 2019; here the bound is the cohort's own.
"""

from pydantic import Field

from .base import STATISTIC, Changes, Robust, length, typical


class Bounded(Robust):
    times: float = Field(1.0, gt=0, allow_inf_nan=False, description="× the round's median length")

    def changed(self, changes: dict[int, Changes]) -> dict[int, Changes]:
        """Longer ones are shortened to the bound: parameters together, each statistic by itself."""
        shortened = {k: Changes(change) for k, change in changes.items()}
        for names in groups(changes):
            parts = {k: {n: change[n] for n in names if n in change} for k, change in changes.items()}
            lengths = {k: length(part) for k, part in parts.items()}
            bound = self.times * typical(lengths)
            for k, part in parts.items():
                if lengths[k] > bound:
                    shortened[k].update({n: value * (bound / lengths[k]) for n, value in part.items()})
        return shortened


def groups(changes: dict[int, Changes]) -> list[list[str]]:
    """Names whose changes have one length: all parameters; each statistic."""
    names = sorted({name for change in changes.values() for name in change})
    return [[n for n in names if not n.startswith(STATISTIC)], *([n] for n in names if n.startswith(STATISTIC))]
