"""How unlabeled clients get labels, by name; any method can train on any of them."""

from .base import Labeler
from .copl import CoPL
from .cpl import CPL
from .fpl import FPL
from .zeroshot import ZeroShotLabels

LABELERS: dict[str, type[Labeler]] = {"zeroshot": ZeroShotLabels, "fpl": FPL, "cpl": CPL, "copl": CoPL}
