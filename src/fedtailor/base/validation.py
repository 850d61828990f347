"""pydantic's complaints, in words."""

from __future__ import annotations

from pydantic import ValidationError


def explain(error: ValidationError, where: str = "", got: bool = True) -> str:
    """The first complaint in one line: `plan.quorum: input should be less than or equal to 1, got 2`"""
    problem = error.errors()[0]
    told = problem["msg"].removeprefix("Value error, ")
    value = f", got {problem['input']!r}" if got and problem["loc"] else ""  # without a place it is about several keys
    return f"{where}{'.'.join(map(str, problem['loc']))}: {told[0].lower()}{told[1:]}{value}"
