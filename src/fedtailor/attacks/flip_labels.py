"""Flipped labels: a bad client trains on its own pictures, each as if it were of the class at the other end."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ..base.errors import UserError
from ..data.dataset import Indices, Split
from .base import Attack


class FlipLabels(Attack):
    """a bad client's labels c are C − 1 − c: head classes are called tail classes, and the other way round"""

    def poisoned(self, train: Split, bad: Sequence[Indices], classes: int) -> Split:
        labels, theirs = known_labels(train), joined(bad)
        labels[theirs] = classes - 1 - labels[theirs]
        return replace(train, labels=labels)


def known_labels(train: Split) -> Indices:
    if train.labels is None or train.partly:
        raise UserError("an attack by labels needs training pictures that all have one")
    return train.labels.copy()


def joined(parts: Sequence[Indices]) -> Indices:
    return np.concatenate([np.empty(0, np.int64), *parts])
