"""How far a server may go with a run's settings at any site, whatever the site's policy: far beyond what anybody
trains with, and short of what fills a machine's memory or never ends."""

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

from ..base.errors import UserError
from ..base.keys import flat

# Pattern → the largest number, first match wins. None: the site has its own (data), it is the server's (plan), or it
# costs nothing.
MOST: Mapping[str, float | None] = {
    "seed": None,
    "every": None,
    "threads": None,  # cut down to what the site has
    "data.*": None,
    "plan.*": None,
    "clients": 1_000_000,
    "local.batch": 4096,
    "local.epochs": 1000,
    "local.span": 1_000_000,
    "local.step": 1_000_000,
    "tuner*.width": 256,
    "tuner*": 1024,
    "method.[mn]": 1000,
    "*": 10_000,
}
LONGEST = 1000  # entries of a list, and characters of a text


def check_limits(document: Mapping[str, Any]) -> None:
    """Of a run's settings; an error names the first that is beyond."""
    for key, value in flat(document).items():
        most = next(most for pattern, most in MOST.items() if fnmatchcase(key, pattern))
        if most is None:
            continue
        if isinstance(value, str | list | tuple) and len(value) > LONGEST:
            raise UserError(f"{key} is {len(value)} long, {LONGEST} is the most")
        for number in value if isinstance(value, list | tuple) else [value]:
            if isinstance(number, int | float) and not abs(number) <= most:  # not, since NaN is not more than anything
                raise UserError(f"{key} is more than {most:g}, beyond what a site carries out")
