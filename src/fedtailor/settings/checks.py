"""Values checked by their class, and mistakes told in the user's own words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any, TypeVar

from pydantic import BaseModel, TypeAdapter, ValidationError

from ..base.errors import UserError, unknown
from ..methods.recipe import flat

T = TypeVar("T")


def checked(kind: type[T], values: Any, where: str) -> T:
    """An object of that class; an error names the key under `where` that is wrong, and what was got."""
    try:
        made = TypeAdapter(kind).validate_python(values)
    except ValidationError as error:
        problem = error.errors()[0]
        key = (where + ".".join(written(problem["loc"], values))).rstrip(".")
        if problem["type"] == "extra_forbidden" and issubclass(kind, BaseModel):
            raise unknown("key", key, [where + field for field in kind.model_fields]) from error
        told = problem["msg"].removeprefix("Value error, ")
        several = isinstance(values, Mapping) and not problem["loc"]  # keys that do not go together
        got = "" if several else f", got {problem['input']!r}"
        raise UserError(f"{key}: {told[0].lower()}{told[1:]}{got}") from error
    for key, value in flat(values).items() if isinstance(values, Mapping) else ():
        # Python takes True for 1; a user who writes true does not mean 1.
        if isinstance(value, bool) and not isinstance(reduce(getattr, key.split("."), made), bool):
            raise UserError(f"{where}{key}: a number is due, got {str(value).lower()}")
    return made


def written(place: Sequence[int | str], values: Any) -> list[str]:
    """The keys of a place as the user wrote them; pydantic adds the kind of value that it tried last."""
    found: list[str] = []
    for part in place:
        if isinstance(values, Mapping) and part in values:
            values = values[part]
        elif found and not isinstance(part, int):
            break
        found.append(str(part))
    return found
