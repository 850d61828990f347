"""The generators of the released codes, for those who want the very clients that these codes deal out."""

from dataclasses import dataclass
from random import Random

import numpy as np

from ..base.errors import UserError

LARGEST = 2**32 - 1  # that numpy's RandomState takes


@dataclass(frozen=True)
class ReleasedDraws:
    """Numpy's and Python's, which those codes seed for the whole process and a long tail seeds anew; here they are
    objects. `seed` is the run's, by which Pachinko begins again."""

    seed: int
    numpy: np.random.RandomState
    python: Random

    @classmethod
    def seeded(cls, seed: int, first: int) -> "ReleasedDraws":
        """`first`: the seed of the long tail, where there is one."""
        if max(seed, first) > LARGEST:
            raise UserError(f"data.draws=released takes seeds up to {LARGEST}, got {max(seed, first)}")
        return cls(seed, np.random.RandomState(first), Random(first))
