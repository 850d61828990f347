"""How long work is reported."""

from collections.abc import Callable

ProgressFn = Callable[[str, int, int], None]  # what is being done, how far, of how much
