"""How good pseudo-labels are, round by round."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..pseudo_labels import collect, quality
from .round import RoundView


def labels(seen: RoundView) -> dict[str, Any] | None:
    """Accuracy and coverage of pseudo-labels: all, head to tail, client by client. FedCoPL Sec. 3.3"""
    table = collect(seen.federation, seen.clients)
    if table is None:
        return None
    owner, truth, picture, y = table
    return {
        "overall": quality(truth, picture, y),
        **{name: quality(truth, picture, y, np.isin(truth, some)) for name, some in seen.tests.groups.items()},
        "clients": [quality(truth, picture, y, owner == k) for k in range(seen.federation.clients)],
    }
