"""Dotted keys and nested groups."""

from collections.abc import Mapping
from typing import Any

from .errors import UserError

DEEP = 16  # groups in groups; no key of ours has half as many


def flat(document: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested groups as dotted keys."""
    out: dict[str, Any] = {}
    if prefix.count(".") > DEEP:
        raise UserError(f"unknown key {prefix[:60]}…; it lies in more than {DEEP} groups")
    for name, value in document.items():
        out |= flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {prefix + name: value}
    return out
