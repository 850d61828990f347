"""How far the server's model is from zero-shot CLIP."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from ...algorithms.alignment import alignment
from ...base.rng import numpy_generator
from ...client.job import ClientState, theta_of
from ..testing import on_device
from .round import RoundView

PICTURES = 2000  # test pictures at most, the same in every round


@torch.no_grad()
def tkl(seen: RoundView) -> dict[str, Any]:
    """Distance of the server's model from zero-shot CLIP, with temperatures aligned and plainly. FedPuReL Fig. 6"""
    job, everything = seen.job, seen.tests.everything
    theta, model = on_device(job, theta_of(job, seen.after.params, ClientState())), job.model.remembering()
    some = np.sort(numpy_generator(job.seed, "diagnostics", "tkl").permutation(everything)[:PICTURES])
    found = {"tkl": 0.0, "kl": 0.0}
    for x, _ in seen.test_batches(some):
        z, f = model.zero_shot_logits(x), job.method.predict_shared(model, theta, x)
        found = {kind: sum_ + len(x) * float(alignment(kind, z, f)) for kind, sum_ in found.items()}
    return {**{kind: sum_ / len(some) for kind, sum_ in found.items()}, "pictures": len(some)}
