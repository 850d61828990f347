"""Whether a backdoor that bad clients of a simulation have put in works."""

import numpy as np

from ...attacks.backdoor import Backdoor
from ..metrics import percent
from ..testing import EvalSet, ask_shared
from .round import RoundView


def backdoor(seen: RoundView, triggered: EvalSet) -> dict[str, float | None]:
    """Percent of the marked test pictures of other classes that the server's model calls the target."""
    attack = seen.job.attack
    assert isinstance(attack, Backdoor)  # no other has pictures with a mark
    target = min(attack.target, seen.job.model.classes - 1)
    said = ask_shared(seen.job, seen.after, triggered)
    others = triggered.labels[: len(said)] != target
    return {"success": percent(int(np.sum(said[others] == target)), int(others.sum()))}
