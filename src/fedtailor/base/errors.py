"""The one error a user is meant to see: what was got, what is allowed, what to do."""

from collections.abc import Iterable
from difflib import get_close_matches
from typing import ClassVar

from pydantic import ValidationError

LONG = 100  # characters of what was got that a sentence repeats


class UserError(Exception):
    """Wrong input. The command line prints the message alone and ends with this exit code."""

    code: ClassVar[int] = 2


class Interrupted(UserError):  # noqa: N818  # as it reads
    """By Ctrl-C."""

    code = 130


class Diverged(UserError):  # noqa: N818  # as it reads
    """Training came to numbers that are none."""


class Note(UserWarning):
    """What a user is told in a sentence while work goes on."""


def unknown(kind: str, got: str, known: Iterable[str], where: str = "") -> UserError:
    """`unknown method 'fedprx'; did you mean 'fedprox'? (fedtailor list methods)`"""
    names = sorted(known)
    near = nearest(got[:LONG], names)
    hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(names)}"
    return UserError(f"unknown {kind} {shortened(got)}; {hint}" + (f" ({where})" if where else ""))


def shortened(value: object) -> str:
    """As Python writes it, if that is not too long for a sentence."""
    try:
        text = repr(value)
    except ValueError:  # an integer with more digits than Python writes
        text = "a number of thousands of digits"
    return text if len(text) <= LONG else f"{text[:LONG]}…"


def nearest(got: str, names: list[str]) -> list[str]:
    """The one that is meant, if any: the same word in another group, its beginning, or something that looks like it."""
    same = [name for name in names if "." in name and name.rsplit(".", 1)[1] == got]
    longer = sorted((name for name in names if len(got) > 2 and name.startswith(got)), key=len)
    return same[:1] or longer[:1] or get_close_matches(got, names, n=1, cutoff=0.5)


def explain(error: ValidationError, where: str = "", got: bool | None = None, key: str = "") -> str:
    """pydantic's first complaint in one line: `plan.quorum: input should be less than or equal to 1, got 2`"""
    problem = error.errors()[0]
    told = problem["msg"].removeprefix("Value error, ")
    shown = bool(problem["loc"]) if got is None else got  # without a place it is about several keys
    value = f", got {shortened(problem['input'])}" if shown else ""
    return f"{key or where + '.'.join(map(str, problem['loc']))}: {told[0].lower()}{told[1:]}{value}"
