"""What a variant computed, in a file, and how far two such files are apart."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray


def save(file: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    named: dict[str, Any] = dict(arrays)
    np.savez(file, **named)


def difference(one: Path, other: Path) -> float:
    """The norm of the difference of all arrays together, of the first file's norm; they must have the same names."""
    with np.load(one) as a, np.load(other) as b:
        if set(a.files) != set(b.files):
            return float("inf")
        apart = sum(float(np.square(a[name] - b[name]).sum()) for name in a.files)
        norm = sum(float(np.square(a[name]).sum()) for name in a.files)
    return float((apart / norm) ** 0.5) if norm else float("inf")
