"""Dotted keys and nested groups."""

from collections.abc import Mapping
from typing import Any


def flat(document: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested groups as dotted keys."""
    out: dict[str, Any] = {}
    for name, value in document.items():
        out |= flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {prefix + name: value}
    return out
