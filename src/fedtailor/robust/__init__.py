"""Robust aggregation by name: `robust=median` goes with any method."""

from .base import Robust
from .bounded import Bounded
from .krum import Krum
from .ordered import Median, Trimmed

ROBUST: dict[str, type[Robust]] = {"bounded": Bounded, "median": Median, "trimmed": Trimmed, "krum": Krum}
