"""Names in records."""

from collections import Counter
from collections.abc import Sequence


def told_apart(classes: Sequence[str]) -> tuple[str, ...]:
    """Those that have a name in common, as some of ImageNet's, with their number behind it."""
    times = Counter(classes)
    return tuple(name if times[name] == 1 else f"{name} ({c})" for c, name in enumerate(classes))
