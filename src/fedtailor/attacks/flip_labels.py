"""Flipped labels: a bad client trains on its own pictures, each as if it were of the class at the other end."""

import torch

from ..core.types import Samples
from .base import Attack


class FlipLabels(Attack):
    """a bad client's labels c are C − 1 − c: head classes are called tail classes, and the other way round"""

    def poisoned(self, data: Samples, classes: int) -> Samples:
        y = data.labels
        return data.labelled(torch.arange(len(y)), classes - 1 - y)
