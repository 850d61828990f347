"""How unlabeled clients get labels, by name; any method can train on any of them."""

from __future__ import annotations

from .base import Labeler

__all__ = ["LABELERS", "Labeler"]

LABELERS: dict[str, type[Labeler]] = {}
