"""What passes send up besides parameters. Each statistic has a form that its method declares, so that whoever receives
one can tell a count from anything else that a client might say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ..base.errors import UserError
from .types import Params

ROUNDING = 1e-3  # of a sum of probabilities over a client's pictures, as a share of it


@dataclass(frozen=True)
class Form:
    """Of one statistic: a tensor like another in shape and type, with a range."""

    like: Tensor
    counts: bool = False  # each number is of the client's pictures: 0 or more, and no more than it has
    optional: bool = False  # it may be missing

    def problem(self, value: Tensor, samples: int) -> str:
        """What is wrong with a value, from a client with so many pictures; empty: nothing."""
        if (value.shape, value.dtype) != (self.like.shape, self.like.dtype):
            return f"is {tuple(value.shape)} in {value.dtype}, not {tuple(self.like.shape)} in {self.like.dtype}"
        if not torch.isfinite(value).all():
            return "is not finite"
        if self.counts and value.numel() and (value.min() < 0 or value.max() > samples * (1 + ROUNDING)):
            return f"counts {value.min():g} to {value.max():g} of {samples} pictures"
        return ""


Forms = Mapping[str, Form]


def class_counts(classes: int, dtype: torch.dtype = torch.int64) -> Form:
    """(C,) how many of the client's pictures are of each class, or by how much."""
    return Form(torch.zeros(classes, dtype=dtype), counts=True)


def check_statistics(stats: Params, forms: Forms, samples: int, at: str) -> None:
    """Exactly what is declared, each as it has to be."""
    problems = [f"{name} is missing" for name, form in forms.items() if name not in stats and not form.optional]
    problems += [f"{name} is not declared" for name in stats if name not in forms]
    found = {name: forms[name].problem(value, samples) for name, value in stats.items() if name in forms}
    problems += [f"{name} {why}" for name, why in found.items() if why]
    if problems:
        raise UserError(f"{at}: its statistics are not as declared: {'; '.join(problems[:3])}")
