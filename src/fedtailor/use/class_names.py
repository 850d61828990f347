"""Classes by name: those of a folder of pictures, and those that a model was not tuned for."""

from collections.abc import Sequence
from fnmatch import fnmatchcase

import torch

from ..base.errors import UserError
from ..core.types import Params


def spelled(name: str) -> str:
    """By which two spellings of a class are one: a folder has underscores where a name has spaces."""
    return name.replace("_", " ").strip().casefold()


def new_classes(names: Sequence[str], known: Sequence[str]) -> tuple[str, ...]:
    """The names, if each of them is new."""
    if isinstance(names, str):
        raise UserError(f"class names are a list, got {names!r}; write [{names!r}]")
    new = tuple(name.strip() for name in names)
    if not new or not all(new):
        raise UserError(f"class names must not be empty, got {list(names)}")
    seen = set(map(spelled, known))
    for name in new:
        if spelled(name) in seen:
            raise UserError(f"the class {name!r} is there already; leave it out")
        seen.add(spelled(name))
    return new


def with_rows(theta: Params, first: Params, rows: Sequence[str], classes: int, method: str) -> Params:
    """Parameters of a model of so many classes for one of more, whose `first` values a method would begin from.

    What has a row for each class gets the first values of the new ones, if it is of these patterns; else there is none.
    """
    longer = [name for name, value in theta.items() if value.shape != first[name].shape]
    if stuck := [name for name in longer if not any(fnmatchcase(name, row) for row in rows)]:
        raise UserError(
            f"{method} learned {', '.join(stuck[:3])} from pictures of each class, and there are none of a new one; "
            "run it anew with pictures of it, or take a method that knows classes by their sentences, such as promptfl"
        )
    return {n: torch.cat([v, first[n][classes:].to(v)]) if n in longer else v for n, v in theta.items()}
