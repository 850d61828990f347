"""What the loop asks of an engine besides `each`: who is asked, what it cost, and how clients do in tests."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from ..core import Params, Pass, Reply, Server
from ..metrics import Score
from ..visit import Client, Task

if TYPE_CHECKING:
    from ..diagnostics.labels import Quality
    from ..setup import Setup


@dataclass(frozen=True)
class Visited:
    """What one visit cost."""

    round: int
    client: int
    pass_: str
    samples: int
    weight: float
    bytes_down: int
    bytes_up: int
    seconds: float
    dropped: str = ""  # why nothing came of it; empty: it counted


@dataclass(frozen=True)
class Traffic:
    """One visit as a diagnostic sees it: what went down and came up, and the client before and after."""

    client: int
    task: Task
    reply: Reply
    before: Client
    after: Client


class Shortfall(Exception):  # noqa: N818  # as it reads
    """Too few clients answered: the round does not count."""


class Engine(Protocol):
    clients: dict[int, Client]  # of clients that are elsewhere, only the version and mark
    visits: list[Visited]  # since whoever reads it last cleared it
    traffic: list[Traffic] | None  # the same in full, where someone wants it

    @property
    def oversample(self) -> float: ...
    def __call__(
        self, pass_: Pass, server: Server, cohort: Sequence[int], inbox: Mapping[int, Params] | None = None
    ) -> dict[int, Reply]: ...
    def open(self) -> None:
        """Before the first round."""
        ...

    def begin(self, invited: Collection[int], wanted: int) -> None:
        """A round begins: of these clients, the first so many to answer are enough."""
        ...

    def saved(self) -> None:
        """A checkpoint was written: the run will never go back behind this."""
        ...

    def examine(self, setup: Setup, server: Server) -> list[Score]:
        """Every client's own model on its own test pictures."""
        ...

    def shared(self, setup: Setup, server: Server) -> Score:
        """The server's model on its test pictures; where it has none, the mean of what clients found."""
        ...

    def untuned(self) -> Score | None:
        """CLIP as it is on clients' own test pictures, where only they can tell."""
        ...

    def pseudo(self, setup: Setup) -> Quality | None:
        """How good pseudo-labels are, as far as anybody knows."""
        ...

    def close(self) -> None: ...
