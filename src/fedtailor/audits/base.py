"""An audit: an attack on what a run sends, or on a model that it made, and how far it got."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from ..base.errors import UserError
from ..base.progress import ProgressFn
from ..core.types import Options

if TYPE_CHECKING:
    from .case import Case

Row = dict[str, Any]


class CannotAttack(UserError):  # noqa: N818  # as it reads
    """Why there is nothing to attack in this way."""


@dataclass(frozen=True)
class Finding:
    table: list[Row]  # what is printed: what was found, beside what there is to compare it with
    told: list[str]  # sentences on what it means, and on what it does not
    tries: list[Row]  # each try by itself
    figures: dict[str, bytes] = field(default_factory=dict)  # PNG, by file name


@dataclass(frozen=True)
class Plan:
    what: str  # it will do
    seconds: float  # that it will take, as measured on a small part


class Audit(Options):
    idea: ClassVar[str]  # in a few words

    @abstractmethod
    def plan(self, case: Case) -> Plan:
        """Also finds out whether there is anything to attack."""

    @abstractmethod
    def __call__(self, case: Case, progress: ProgressFn) -> Finding: ...


def seconds_of(work: Callable[[], object]) -> float:
    """Of the second time: the first makes what is kept."""
    work()
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def rounded(row: Row) -> Row:
    """As many digits as mean something."""
    return {key: round(value, 4) if isinstance(value, float) else value for key, value in row.items()}
