"""How far the server's model is from zero-shot CLIP."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from ..evaluate import on_device
from ..methods.fedpurel import alignment
from ..rng import numpy_generator
from ..visit import Client, theta_of
from .round import Round

PICTURES = 2000  # test pictures at most, the same in every round


@torch.no_grad()
def tkl(seen: Round) -> dict[str, Any]:
    """Distance of the server's model from zero-shot CLIP, with temperatures aligned and plainly. FedPuReL Fig. 6"""
    job, everything = seen.job, seen.setup.tests.everything
    theta, model = on_device(job, theta_of(job, seen.after.params, Client())), job.model.remembering()
    some = np.sort(numpy_generator(job.seed, "diagnostics", "tkl").permutation(everything)[:PICTURES])
    found = {"tkl": 0.0, "kl": 0.0}
    for x, _ in seen.tests(some):
        z, f = model.zero_shot_logits(x), job.method.predict_shared(model, theta, x)
        found = {kind: sum_ + len(x) * float(alignment(kind, z, f)) for kind, sum_ in found.items()}
    return {**{kind: sum_ / len(some) for kind, sum_ in found.items()}, "pictures": len(some)}
