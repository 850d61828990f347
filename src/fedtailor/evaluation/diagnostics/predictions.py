"""What a round's models predict on the test set, and how good the pseudo-labels of the round are."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...algorithms.alignment import alignment
from ...base.rng import numpy_generator
from ...client.job import ClientState, theta_of
from ...data.dataset import Indices
from ...data.groups import Groups
from ..metrics import Score, percent
from ..pseudo_labels import collect, quality
from ..testing import on_device, personal_theta
from .round import RoundView

PICTURES = 2000  # test pictures at most, for `tkl`; the same in every round


@torch.no_grad()
def tkl(seen: RoundView) -> dict[str, Any]:
    """Distance of the server's model from zero-shot CLIP, with temperatures aligned and plainly. FedPuReL Fig. 6"""
    job, everything = seen.job, seen.tests.everything
    theta, model = on_device(job, theta_of(job, seen.after.params, ClientState())), job.model.remembering()
    some = np.sort(numpy_generator(job.seed, "diagnostics", "tkl").permutation(everything)[:PICTURES])
    sums = {"tkl": 0.0, "kl": 0.0}
    for x, _ in seen.test_batches(some):
        z, f = model.zero_shot_logits(x), job.method.predict_shared(model, theta, x)
        sums = {kind: total + len(x) * float(alignment(kind, z, f)) for kind, total in sums.items()}
    return {**{kind: total / len(some) for kind, total in sums.items()}, "pictures": len(some)}


@torch.no_grad()
def branches(seen: RoundView) -> dict[str, Any] | None:
    """Right predictions owed to the global and to the personal branch, head to tail. FedPuReL Fig. 5b"""
    truths, owed = [], []
    for k, part in enumerate(seen.tests.parts):
        if not seen.clients[k].local:
            continue
        model = seen.job.model.remembering()
        theta = on_device(seen.job, personal_theta(seen.job, seen.after, k, seen.clients[k]))
        for x, y in seen.test_batches(part):
            right, to_global = owing(*seen.job.method.branches(model, theta, x), y)
            truths.append(y[right].cpu().numpy())
            owed.append(to_global[right].cpu().numpy())
    return shares(np.concatenate(truths), np.concatenate(owed), seen.tests.groups) if truths else None


def owing(l_G: Tensor, l_P: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """(B,) which predictions are right, and where the global branch has the larger logit for the true class."""
    true = y[:, None]
    return (l_G + l_P).argmax(1) == y, (l_G.gather(1, true) > l_P.gather(1, true)).flatten()


def shares(truths: Indices, owed: Indices, groups: Groups) -> dict[str, Any]:
    """From the classes of right predictions, and whether each is owed to the global branch."""

    def share(which: Indices) -> dict[str, Any]:
        right, to_global = len(which), int(which.sum())
        return {"global": percent(to_global, right), "personal": percent(right - to_global, right), "right": right}

    return {"overall": share(owed), **{name: share(owed[np.isin(truths, some)]) for name, some in groups.items()}}


def balance(seen: RoundView) -> dict[str, Any]:
    """Balancedness of the server's and the clients' models, and how far class accuracies spread. FedPuReL Sec. 4.5"""
    return {"global": evenness(seen.shared), "personal": evenness(seen.personal)}


def evenness(score: Score | None) -> dict[str, float | None] | None:
    """None in a round that is not tested."""
    if score is None:
        return None
    known = [accuracy for accuracy in score.per_class if accuracy is not None]
    return {"balancedness": score.values["balancedness"], "std": float(np.std(known)) if known else None}


def labels(seen: RoundView) -> dict[str, Any] | None:
    """Accuracy and coverage of pseudo-labels: all, head to tail, client by client. FedCoPL Sec. 3.3"""
    table = collect(seen.federation, seen.clients)
    if table is None:
        return None
    owner, truth, picture, y = table
    clients = {seen.federation.name_of(k): owner == k for k in range(seen.federation.clients)}
    return {
        "overall": quality(truth, picture, y),
        **{name: quality(truth, picture, y, np.isin(truth, some)) for name, some in seen.tests.groups.items()},
        "clients": {name: quality(truth, picture, y, theirs) for name, theirs in clients.items()},
    }
