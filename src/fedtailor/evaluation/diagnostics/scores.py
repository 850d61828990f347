"""How evenly the classes are known."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..metrics import Score
from .round import RoundView


def balance(seen: RoundView) -> dict[str, Any]:
    """Balancedness of the server's and the clients' models, and how far class accuracies spread. FedPuReL Sec. 4.5"""
    return {"global": evenness(seen.shared), "personal": evenness(seen.personal)}


def evenness(score: Score | None) -> dict[str, float | None] | None:
    """None in a round that is not tested."""
    if score is None:
        return None
    known = [accuracy for accuracy in score.per_class if accuracy is not None]
    return {"balancedness": score.balancedness, "std": float(np.std(known)) if known else None}
